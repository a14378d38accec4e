"""What the image runs: the step of a workflow, or with arguments the `keystone` command.

An init (tini) is process 1 and reaps; SIGTERM ends this process like SIGINT until the engine takes both over.
"""

import os
import signal
import sys

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if arguments or os.environ.get("GITHUB_ACTIONS") != "true":
        from keystone_action.__main__ import main as keystone

        return keystone(arguments)
    from keystone_action.action import main as action

    # A workflow may hand the host's PATH into the container; what this image has must be found all the same.
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}".lstrip(":")
    return action(os.environ, stdout=sys.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
