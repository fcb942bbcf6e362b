"""A device that behaves like CUDA to torch, on a machine without a GPU."""
