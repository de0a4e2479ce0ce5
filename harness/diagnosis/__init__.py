"""Diagnosis of a failure: its layer, its frames, its signature."""
