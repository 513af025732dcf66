"""Kernels in Triton; kernels.registry imports them when one is chosen, since Triton is optional."""
