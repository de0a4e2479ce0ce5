"""Virtual devices of a platform, on the CPU: the plugin in C, and its Python half."""

import os


def in_own_words(text: str) -> str:
    """Return the text as the plugin itself writes errors, such as ``virtual TPU: TEXT``."""
    return f"virtual {os.environ.get('VIRTUAL_TPU_TITLE', 'TPU')}: {text}"
