"""Check whether a PJRT plugin does what frameworks rely on, each check in a process of its own."""
