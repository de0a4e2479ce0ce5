"""Level L0: the functions of the PJRT C API, called from Python without a framework."""
