"""Run a project's own tests with a package as it is installed and in another version."""
