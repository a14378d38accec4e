"""What the image runs: the step of a workflow, or with arguments the `keystone` command.

An init (tini) is process 1 and reaps; SIGTERM ends this process like SIGINT until the engine takes both over.
"""

import os
import signal
import sys

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    environ = dict(os.environ)
    if arguments != ["--version"]:
        from keystone_action.environment import take

        environ = take(arguments)
    if arguments or environ.get("GITHUB_ACTIONS") != "true":
        from keystone_action.__main__ import main as keystone

        return keystone(arguments, environ)
    from keystone_action.action import main as action

    # A workflow may hand the host's PATH into the container; what this image has must be found all the same.
    environ["PATH"] = os.environ["PATH"] = f"{environ.get('PATH', '')}:{SYSTEM_PATH}".lstrip(":")
    return action(environ, stdout=sys.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
