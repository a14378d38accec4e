"""The `keystone` command. `--version` answers before anything heavy is imported: start-up is a budget."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal` takes some milliseconds, in which one would kill us
import os
import sys

_CANCELLED, _BROKEN = 130, 3
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run the command line and return its exit code. arguments: None = this process's own, which then may start anew.
    environ: None = this process's own."""
    if arguments is None:
        for number in (_signal.SIGINT, _signal.SIGTERM):
            _signal.signal(number, lambda *_: os._exit(_CANCELLED))
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        from keystone_action import __version__

        sys.stdout.write(f"keystone {__version__}\n")
        return 0
    from keystone_action.system import signals

    signals.take_over()
    if environ is None:
        from keystone_action.system.environment import let_signals_in, take

        environ = take(words) if arguments is None else dict(os.environ)
        let_signals_in()
    signals.start_watchdog()
    if arguments is None and not {"-v", "--verbose"} & {*words}:
        # What no caller can be told, such as that a half made event loop can't be closed: its maker was told why.
        sys.unraisablehook = lambda _: None
    code = signals.finish(_run(words, environ))
    if arguments is None:
        # An interpreter that takes itself apart costs more than all else that is left to do.
        signals.leave(code)
    return code


def _run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    try:
        return run(words, environ)
    except KeyboardInterrupt:  # when the command line had ended already
        return _CANCELLED
    except Exception as error:  # noqa: BLE001 - before the command line could take it: exit 1 would be a failed agent
        sys.stderr.write(f"keystone: internal error: {type(error).__name__}: {error}\n")
        return _BROKEN


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """The command line of a process whose signals are ours."""
    import gc

    # What start-up allocates stays: a collector that looks through it again and again only costs time. A run switches
    # it on when it starts its cells.
    gc.disable()
    # Looking for plug-ins of pydantic reads the metadata of every installed package; none is meant for us.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        from keystone_action.cli import main as cli

        return cli.main(words, environ)
    finally:
        gc.enable()


if __name__ == "__main__":
    sys.exit(main())
