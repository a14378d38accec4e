"""What the image runs: the step of a workflow, or with arguments the `keystone` command.

This starts as process 1, which an init (tini) becomes when `take` starts this program anew. Signals are blocked before
either start, and the program's first lines take them over.
"""

import os
import sys

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        from keystone_action.__main__ import main as keystone

        return keystone(arguments)
    from keystone_action.system import signals

    signals.take_over()
    from keystone_action.system.environment import let_signals_in, take

    environ = take(arguments)
    let_signals_in()
    if arguments or environ.get("GITHUB_ACTIONS") != "true":
        from keystone_action.__main__ import main as keystone

        return keystone(arguments, environ)
    signals.start_watchdog()
    from keystone_action.action.main import main as action

    # A workflow may hand the host's PATH into the container; what this image has must be found all the same.
    environ["PATH"] = os.environ["PATH"] = f"{environ.get('PATH', '')}:{SYSTEM_PATH}".lstrip(":")
    signals.interrupt()
    code = action(environ, stdout=sys.stdout)
    return signals.finish(code, cancelled=code)  # it knows what a signal broke off, and what came before that


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
