"""Text in SQL statements."""


def quoted(text: str) -> str:
    """``text`` inside of an SQL string."""
    return text.replace("'", "''")
