"""Lane ``tpu``, and which devices this machine has."""
