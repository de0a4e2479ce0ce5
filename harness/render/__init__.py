"""Verdicts and comparisons as text, Markdown and annotations."""
