"""What runs left behind, read without torch, torch_xla or jax."""
