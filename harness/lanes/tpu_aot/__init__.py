"""libtpu's compiler for a TPU that is not there. Nothing here starts a device or looks for one."""
