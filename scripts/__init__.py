"""What the package does not need to run: `python3 -m scripts.NAME`, in the root of a checkout."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# A bare machine has no installed package: the source is beside us.
sys.path.insert(0, str(ROOT / "src"))
