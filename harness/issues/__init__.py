"""Issues on GitHub that follow what the history says regressed."""
