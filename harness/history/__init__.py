"""Immutable runs as Parquet files, and the branch that they live on."""
