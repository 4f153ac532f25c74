"""Dtypes of arrays, the choices that a port leaves, and shapes that many have."""

from __future__ import annotations

F32 = ("float32",)
F64 = ("float64",)
I32 = ("int32",)
I64 = ("int64",)
U8 = ("uint8",)
U32 = ("uint32",)
BOOL = ("bool",)
# NumPy has no bfloat16: the reference carries bf16 rows as their 16-bit patterns (uint16).
HIDDEN = ("float32", "float16", "bfloat16")
# A plain Python int: known on the host without reading the device.
HOST = ("host_int",)

EACH = ("B",)
INDPTR = ("B+1",)
RUN = ("B", "n")
STORE = ("B", "N")
