"""The commands of ``xla-harness``: ``registry.py`` lists them, ``add`` of a module defines one."""
