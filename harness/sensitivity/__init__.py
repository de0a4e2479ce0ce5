"""Measure how much tests see: plant faults in the programs that they compile, one at a time."""
