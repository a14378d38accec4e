"""The front door on a laptop: words in, exit code out. What each command does lives in `commands.py`."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from keystone_action.cli import commands
from keystone_action.cli.arguments import FIRST_STEPS, build_parser
from keystone_action.cli.streams import give_up, open_streams
from keystone_action.errors import EXIT_CANCELLED, EXIT_ERROR, EXIT_USAGE, KeystoneError, UsageError
from keystone_action.system import signals

_WRITING_FAILS_WITH = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG, errno.EPIPE}


def main(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Parse, run, and return the exit code: 0 pass, 1 fail, 2 bad spec or call, 3 error, 130 cancelled. environ: None =
    this process's own.

    Every foreseen failure is a sentence on stderr; a traceback comes only with `--verbose`.
    """
    open_streams()
    verbose = False  # of a bad call the sentence says everything
    signals.interrupt()
    try:
        if not arguments:
            # Not a report, and in a script not a success: no spec was looked at.
            sys.stderr.write(FIRST_STEPS)
            return EXIT_USAGE
        call = _parse(arguments)
        verbose = call.verbose
        return _dispatch(call, dict(os.environ if environ is None else environ))
    except KeystoneError as error:
        _say_error(error)
        if verbose:
            traceback.print_exc()
        return error.exit_code
    except KeyboardInterrupt:
        _say("cancelled")
        return EXIT_CANCELLED
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else EXIT_ERROR
    except OSError as error:
        if verbose:
            traceback.print_exc()
        give_up(sys.stdout)
        _say(_of_system(error))
        return EXIT_ERROR
    except BaseException as error:  # noqa: BLE001 - the last resort: a defect of ours (a panic of Rust is not an Exception) is exit 3
        if verbose:
            traceback.print_exc()
        if signals.stop_signal():  # which broke what was under way
            _say("cancelled")
            return EXIT_CANCELLED
        _say_defect(error)
        return EXIT_ERROR


def _say_defect(error: BaseException) -> None:
    from keystone_action.system.shortage import machine_shortage

    if lacking := machine_shortage(error):
        _say(lacking)
    else:
        _say(f"internal error: {type(error).__name__}: {error}", "run again with --verbose and report it")


def _of_system(error: OSError) -> str:
    """What the system refused, by what it said: only what writing fails with is told of standard output."""
    from keystone_action.system.shortage import machine_shortage

    reason = error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM):
        return machine_shortage(error)  # whatever could not be opened: a module of ours, for one
    if error.filename:
        return f"{error.filename} can't be written or read: {reason}"
    if error.errno in _WRITING_FAILS_WITH:
        return f"standard output can't be written or read: {reason}"
    if error.errno == errno.ENOENT:  # what Python says when it finds no directory for temporary files
        return f"{reason}; TMPDIR names the directory for temporary files"
    return machine_shortage(error) or reason


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = build_parser()
    call = parser.parse_args(words)
    if call.command is None:
        raise UsageError("no command was given", help="`keystone help` lists them")
    if call.command == "help":
        parser.parse_args([*filter(None, [call.about]), "--help"])
    return call


def _dispatch(call: argparse.Namespace, environ: dict[str, str]) -> int:
    directory, began = Path.cwd(), time.monotonic()
    code: int = getattr(commands, f"command_{call.command}")(call, directory=directory, environ=environ)
    sys.stdout.flush()
    if call.verbose:
        from keystone_action.report.words import duration

        _say(f"{call.command} took {duration(time.monotonic() - began)} and ends with exit code {code}")
    if signals.stop_signal() and code != EXIT_CANCELLED:
        _say(f"{signals.stop_signal()} came after the work was done: all of it is kept")
    return code


def _say_error(error: KeystoneError) -> None:
    from keystone_action.spec.loading.diagnostics import SpecError

    if not isinstance(error, SpecError):
        _say(error.message, error.help)
        return
    from keystone_action.report.escape import log_lines
    from keystone_action.report.words import count
    from keystone_action.spec.loading.diagnostics import with_short_paths

    # Every line starts with its place, as editors and terminals expect it of a compiler.
    sys.stderr.write(log_lines(with_short_paths(error, Path.cwd()).message) + "\n")
    files = len({one.path for one in error.diagnostics})
    _say(f"{count(len(error.diagnostics), 'error')} in {count(files, 'spec')}")


def _say(message: str, help_text: str = "") -> None:
    from keystone_action.report.escape import log_line

    for line in [f"keystone: {message}", *([f"  → {help_text}"] if help_text else [])]:
        for part in line.split("\n"):
            sys.stderr.write(log_line(part) + "\n")
