"""The real command, started by a driver: a program that first makes one place of it wait or hang, or a limit another.

Where it waits or hangs, `NAME.reached` says that it is there, and where it only waits, `NAME.go` lets it go on.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.command_line import ENVIRONMENT, Called

_DRIVER = """
import importlib, os, sys, time

def wait(name):
    open(name + ".reached", "w").close()
    while not os.path.exists(name + ".go"):
        time.sleep(0.05)

def hang(name):  # in Python code: other threads run
    open(name + ".reached", "w").close()
    while True:
        time.sleep(0.05)

def seize(name):  # in C code that keeps the interpreter's lock
    import ctypes
    mutex = ctypes.create_string_buffer(64)
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    open(name + ".reached", "w").close()
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # for ever: no signal ends that

def at(module, name, do, only=lambda *_: True):
    found = importlib.import_module("keystone_action." + module)
    original = getattr(found, name)
    def replaced(*arguments, **named):
        if only(*arguments):
            do(name)
        return original(*arguments, **named)
    setattr(found, name, replaced)

class AtImport:
    def find_spec(self, name, path, target=None):
        if name == "keystone_action." + self.module:
            self.module = ""
            self.do("import")

def within(module, **seconds):  # other limits than it has
    found = vars(importlib.import_module("keystone_action." + module))
    assert seconds.keys() <= found.keys(), seconds.keys() - found.keys()
    found.update(seconds)

def at_import(module, do):
    finder = AtImport()
    finder.module, finder.do = module, do
    sys.meta_path.insert(0, finder)

{place}
from keystone_action.__main__ import main
sys.exit(main())
"""

PATIENT = """
within("system.signals", RUN_SECONDS=60.0, _EXIT_SECONDS=76.0, _KILL_SECONDS=82.0, END_SECONDS=84.0)
within("runner.shared_services", _HURRIED_SECONDS=36.0, _CUT_SECONDS=53.0)
"""
"""More time from a signal to its end: what a busy engine would not remove in time is not what is asked."""


def write_driver(directory: Path, place: str) -> None:
    """`driver.py`. place: Python by the functions above."""
    (directory / "driver.py").write_text(_DRIVER.replace("{place}", place))


def run_driven(directory: Path, text: str, place: str) -> Called:
    """Run this keystone.yaml into `out`, to its end."""
    write_driver(directory, place)
    (directory / "keystone.yaml").write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "driver.py", "run", "keystone.yaml", "--output", "out"],
        cwd=directory,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return Called(done.returncode, done.stdout, done.stderr, directory / "out")
