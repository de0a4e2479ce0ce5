"""A case as one self-contained script: its body, what it uses of the suites, and its setting."""
