"""What a server, or the way to it, said when something failed."""

from __future__ import annotations


def one_line(error: BaseException) -> str:
    """The error on one line. Drivers of MySQL, and the system, put a number in front of the text: it is left out."""
    text = str(error.args[1]) if len(error.args) > 1 and isinstance(error.args[0], int) else str(error)
    return " ".join(text.split()) or type(error).__name__
