"""`aerie bench kernels`, `attention` and `aerie tune gemm`: single calls against their ceiling."""
