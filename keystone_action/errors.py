"""Everything that can go wrong, by whose fault it is and by the exit code it earns.

    KeystoneError
    ├── UsageError            exit 2: a bad call, or nothing to run
    │   ├── SpecError         exit 2: a bad spec file; carries every diagnostic of it
    ├── HarnessError          exit 3: what we (or a service, fixture, setup) broke; never the agent's fault
    │   ├── SandboxError      the sandbox could not be made, or its supervisor died
    │   ├── ServiceError      a service never got ready or went away
    │   ├── SecretError       a secret that can't be resolved
    │   └── OutputError       results can't be written
    └── Cancelled             exit 130

A failed *agent* is never an exception: it is recorded in the evidence and graded.
"""

from __future__ import annotations

import errno
import os

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_USAGE = 2
EXIT_ERROR = 3
EXIT_CANCELLED = 130

PROGRAM_EXIT_CODES = {126: "a program was found and could not be run", 127: "a program was not found"}
"""What a shell means by them. Codes above 128 are left alone: a program may end with 137 and no signal came."""
_AGENT_ERRNOS = frozenset(
    {
        errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.ELOOP,  # closed, gone, replaced, led in circles
        errno.EISDIR, errno.ENAMETOOLONG, errno.ENXIO, errno.EXDEV,  # of another kind than expected, or elsewhere
        errno.EPERM, errno.EEXIST, errno.ENOTEMPTY, errno.EINVAL,  # in the way, or named as no system can have it
    }
)  # fmt: skip


class KeystoneError(Exception):
    """Base of all errors that are shown as a sentence, without a traceback.

    Attributes:
        exit_code: what the process ends with when nothing catches this.
        help: what to do about it, shown on a line of its own; may be empty.
    """

    exit_code = EXIT_ERROR

    def __init__(self, message: str, *, help: str = "") -> None:  # noqa: A002 - the word people look for
        super().__init__(message)
        self.message = message
        self.help = help

    @property
    def sentences(self) -> str:
        """Message and help for where both go into one text: on one line, unless the message quotes output."""
        if not self.help:
            return self.message
        if "\n" in self.message:
            return f"{self.message}\n{self.help}"
        return f"{self.message.rstrip('.')}{'. ' if self.help[0].isupper() else '; '}{self.help}"


class UsageError(KeystoneError):
    """A bad call, a named file that is missing, or nothing to run."""

    exit_code = EXIT_USAGE


class HarnessError(KeystoneError):
    """Something of ours, of a service, a fixture or the setup failed: the cell is `error`, not `fail`."""

    exit_code = EXIT_ERROR


class SandboxError(HarnessError):
    """The sandbox could not be made or lost its supervisor."""


class ServiceError(HarnessError):
    """A service never got ready, or went away while it was needed."""


class SecretError(HarnessError):
    """A secret that can't be resolved."""


class OutputError(HarnessError):
    """Results can't be written (disk full, read-only directory)."""


class Cancelled(KeystoneError):  # noqa: N818 - the field's word
    """SIGINT or SIGTERM: finished cells are kept."""

    exit_code = EXIT_CANCELLED


def caused_by_agent(error: OSError) -> bool:
    """Whether the state in which an agent left its files explains this failure to use one of them.

    Everything else (no descriptor, memory or space left, a broken disk) is a failure of this machine: with it nothing
    is known about the agent's work, and taking the file for missing or unreadable would grade the agent for it.
    """
    return error.errno in _AGENT_ERRNOS


def raise_unless_agent(error: OSError, what: str) -> None:
    """Raise HarnessError when a failure to use the agent's files is ours. what: what failed ("reading a.txt")."""
    if not caused_by_agent(error):
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise HarnessError(f"{what} failed on this machine: {reason}") from error
