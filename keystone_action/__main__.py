"""The `keystone` command. `--version` answers before anything heavy is imported: start-up is a budget."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        from keystone_action import __version__

        sys.stdout.write(f"keystone {__version__}\n")
        return 0
    from keystone_action import cli

    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main())
