"""Blocks: compositions of kernels that run as one."""
