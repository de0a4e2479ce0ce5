"""Runs cases on this machine's devices: which it has, and the vendor's library."""
