"""NumPy arrays by what they hold; shapes are on the cards."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Int32s = NDArray[np.int32]
Words = NDArray[np.uint32]
