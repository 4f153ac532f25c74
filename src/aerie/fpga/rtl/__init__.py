"""The tree kernels in Amaranth: parametrised blocks with counters, and the tops made of them."""
