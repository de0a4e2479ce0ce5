"""Stacks: pinned sets of Python, torch, torch_xla or torch_tpu, jax and libtpu; environments."""
