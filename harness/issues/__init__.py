"""GitHub issues on the regressions in a history."""
