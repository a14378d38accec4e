"""What commands printed, as checks show it: the tail in the message, everything that was kept in the log."""

from __future__ import annotations

import signal

from keystone_action.errors import PROGRAM_EXIT_CODES
from keystone_action.system.command import Capture, Completed

TAIL_LINES = 20
TAIL_CHARACTERS = 2000


def tail(capture: Capture) -> str:
    """The last lines of a stream, at most TAIL_LINES and TAIL_CHARACTERS, a cut said in a line of its own."""
    text = (capture.tail or capture.head).decode("utf-8", "replace").rstrip()
    kept = "\n".join(text[-TAIL_CHARACTERS:].split("\n")[-TAIL_LINES:])
    if not capture.cut and len(kept) == len(text):
        return kept
    return f"[… {capture.total - len(kept.encode()):,} bytes before this …]\n{kept}"


def tails(completed: Completed) -> str:
    """The tails of both streams under their names; a sentence when nothing was printed."""
    parts = [
        f"{name}:\n{tail(stream)}"
        for name, stream in (("stdout", completed.stdout), ("stderr", completed.stderr))
        if stream.total
    ]
    parts += [completed.advice] if completed.advice else []
    return "\n".join(parts) or "It printed nothing."


def describe_ending(completed: Completed) -> str:
    """`ended with exit code 1`, `was ended by SIGKILL (exit code 137)`: the second only when a signal ended it."""
    code = completed.shell_code
    if completed.signal is not None:
        return f"was ended by {signal_name(completed.signal)} (exit code {code})"
    meaning = PROGRAM_EXIT_CODES.get(code)
    return f"ended with exit code {code}" + (f" ({meaning})" if meaning else "")


def full_log(completed: Completed) -> str:
    """All that was kept of both streams, for checks/<name>.log."""
    return f"--- stdout ---\n{completed.stdout.text()}\n--- stderr ---\n{completed.stderr.text()}\n"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; the number where the platform has no name for it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def seconds(value: float) -> str:
    """Seconds as people write them: `300 s`, `0.5 s`."""
    return f"{value:g} s"
