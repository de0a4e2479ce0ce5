"""Compiles for a TPU with libtpu, without a TPU. Nothing here starts or looks for a device."""
