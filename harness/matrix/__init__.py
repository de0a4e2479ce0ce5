"""Running the suites on stacks: cells, side by side, resumable."""
