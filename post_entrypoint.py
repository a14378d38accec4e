#!/usr/bin/env -S --block-signal=INT --block-signal=TERM /opt/keystone/bin/python -I
"""What the image runs after the step, whatever became of it: removes what its run left behind."""

import sys

from keystone_action.system import signals


def main() -> int:
    signals.take_over()
    from keystone_action.system.environment import let_signals_in, take

    environ = take(sys.argv[1:])
    let_signals_in()
    signals.start_watchdog()
    signals.interrupt()
    try:
        from keystone_action.action.post import main as clean_up

        code = clean_up(environ, stdout=sys.stdout)
    except KeyboardInterrupt:
        sys.stderr.write("keystone: cleaning up was cancelled\n")
        code = 0
    return signals.finish(code, cancelled=code)


if __name__ == "__main__":
    sys.exit(main())
