"""What has changed: the rules, in SQL, and the comparison of two stacks."""
