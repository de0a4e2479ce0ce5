"""Stacks: pinned sets of Python, torch, torch_xla, jax and libtpu, and their environments."""
