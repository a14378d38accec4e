"""Regular expressions over text that others wrote: Python's rules, through a package that can be stopped."""

from __future__ import annotations

import time


class PatternTimeout(Exception):  # noqa: N818 - an outcome: the check fails
    """A pattern hit its time limit; the message is a sentence without its full stop."""


def search(pattern: str, text: str, *, deadline: float) -> bool:
    """Whether the pattern matches somewhere; `^` and `$` bind to the whole text unless it says `(?m)`.

    deadline: in `time.monotonic()` seconds. Raises PatternTimeout at the deadline, regex.error for a pattern that is
    none (the loader has refused those).
    """
    import regex

    remaining = deadline - time.monotonic()
    try:
        # concurrent=True lets other threads run meanwhile: this text may have been written to take forever.
        return regex.search(pattern, text, timeout=max(remaining, 0.001), concurrent=True) is not None
    except TimeoutError:
        raise PatternTimeout(f"the pattern {pattern!r} hit the time limit of the check") from None
