"""Where the tests of Triton functions run: on a GPU if there is one, else in the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def on_device(value: Any) -> Any:
    """A NumPy array as a tensor of the device; anything else as it is."""
    return torch.from_numpy(value).to(DEVICE) if isinstance(value, np.ndarray) else value
