"""A call that the tests of a module look at together, made once for all workers: tests of one module may be given to
several of them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from support.command_line import Called


def called_once(tmp_path_factory: pytest.TempPathFactory, name: str, call: Callable[[Path], Called]) -> Called:
    """What `call` gives in a directory of this name; by whichever worker asks first, while the others wait."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    directory, kept = root / name, root / f"{name}.json"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            directory.mkdir()
            called = call(directory)
            kept.write_text(json.dumps({**asdict(called), "output": str(called.output)}), "utf-8")
    told = json.loads(kept.read_text("utf-8"))
    return Called(**{**told, "output": Path(told["output"])})
