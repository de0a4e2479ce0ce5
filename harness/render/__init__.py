"""Verdicts and findings as text, Markdown and annotations."""
