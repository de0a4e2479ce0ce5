"""Regression tests for distributed XLA: what breaks, since when, and whose fault it is."""

from importlib.metadata import version

__version__ = version("xla-harness")
