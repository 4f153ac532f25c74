"""Bad input gets a named error with the value and the limit, and nothing is written."""

import numpy as np

from aerie.errors import KernelError, UnknownNameError
from aerie.kernels import load

kernels = load("pytorch")
table = np.zeros((2, 8), np.int32)
before = table.copy()
try:
    kernels["assign_req_to_token_pool_operator"](
        req_to_token=table,
        req_pool_indices=np.array([0, 1]),
        start=np.array([0, 6]),
        end=np.array([4, 12]),
        out_cache_loc=np.arange(10, dtype=np.int32),
    )
except KernelError as error:
    print(f"{type(error).__name__}: {error}")
    print(f"value {error.value}, limit {error.limit}")
print("table unchanged:", bool((table == before).all()))

try:
    load("reference")["calculate_work_delta"]
except UnknownNameError as error:
    print(f"{type(error).__name__}: {error}")
