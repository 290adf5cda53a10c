"""Times of kernels on a GPU, for the tuner and for benchmarks: the protocol is that of docs/benchmarks.md."""
