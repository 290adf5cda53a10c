"""Kernels beside what else does their work: cuBLAS's plain product, torch.compile, and other libraries."""
