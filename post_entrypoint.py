#!/opt/keystone/bin/python -I
"""What the image runs after the step, whatever became of it: removes what its run left behind."""

import signal
import sys


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    from keystone_action.environment import take

    environ = take(sys.argv[1:])
    from keystone_action.after import main as clean_up

    return clean_up(environ, stdout=sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
