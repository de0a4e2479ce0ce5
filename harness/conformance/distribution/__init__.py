"""Level 3: programs that are divided over devices, by cases of the suites and over processes."""
