"""The commands of ``xla-harness``: a module each, whose ``add`` puts it on the command line."""
