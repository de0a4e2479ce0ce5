"""How much tests see: faults planted in the programs that they compile, one at a time."""
