"""The front door on a laptop: words in, exit code out. What each command does lives in `commands.py`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from keystone_action.arguments import build_parser
from keystone_action.errors import EXIT_CANCELLED, EXIT_ERROR, EXIT_PASS, KeystoneError


def main(arguments: Sequence[str]) -> int:
    """Parse, run, and return the exit code: 0 pass, 1 fail, 2 bad spec or call, 3 error, 130 cancelled.

    Every foreseen failure is a sentence on stderr; a traceback comes only with `--verbose`.
    """
    parser = build_parser()
    verbose = "--verbose" in arguments
    try:
        call = parser.parse_args(arguments)
        return _dispatch(call)
    except KeystoneError as error:
        _say(error.message, error.help)
        if verbose:
            traceback.print_exc()
        return error.exit_code
    except KeyboardInterrupt:
        _say("cancelled")
        return EXIT_CANCELLED
    except BrokenPipeError:
        # The reader of our output left (`keystone … | head`); nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PASS
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else EXIT_ERROR
    except Exception as error:  # noqa: BLE001 - the last resort: a defect of ours is exit 3, never a failed agent
        if verbose:
            traceback.print_exc()
        _say(f"internal error: {type(error).__name__}: {error}", "run again with --verbose and report it")
        return EXIT_ERROR


def _dispatch(call: argparse.Namespace) -> int:
    from keystone_action import commands

    directory = Path.cwd()
    code: int = getattr(commands, f"command_{call.command}")(call, directory=directory, environ=dict(os.environ))
    return code


def _say(message: str, help_text: str = "") -> None:
    from keystone_action.report.escape import log_line

    for line in [f"keystone: {message}", *([f"  → {help_text}"] if help_text else [])]:
        for part in line.split("\n"):
            sys.stderr.write(log_line(part) + "\n")
