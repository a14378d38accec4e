"""The command where no engine would see our files, as a remote one doesn't: a program of `fork_server.py`."""

from __future__ import annotations

import functools

from keystone_action.sandbox.containers import sandboxes as docker

docker.start_docker = functools.partial(docker.start_docker, mode="copy")

from keystone_action.__main__ import main  # noqa: E402 - what it imports finds the other function

__all__ = ["main"]
