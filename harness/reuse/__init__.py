"""Reuse a case's result while nothing that it depends on has changed."""
