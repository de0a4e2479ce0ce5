"""JUnit reports: one reader, and what the harness writes into them."""
