"""A virtual multi-slice TPU for torch_xla and JAX: a PJRT plugin over OpenXLA's CPU plugin."""
