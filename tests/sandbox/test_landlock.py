"""Rules that all commands of a run share are prepared ahead; a command's own are its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keystone_action.sandbox.processes import landlock

PROGRAM = """
import os, sys, threading
from keystone_action.sandbox.processes import landlock

shared, one, other = sys.argv[1:4]
lasting, version = [(shared, landlock.READ)], landlock.abi()
landlock.no_new_privileges()

def command(own, expected):
    def look():
        landlock.restrict([(own, landlock.READ)], version, lasting)
        found = []
        for path in (shared, one, other):
            try:
                os.listdir(path)
                found.append(path)
            except PermissionError:
                pass
        print(found == expected, found, flush=True)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

before = len(os.listdir("/proc/self/fd"))
for prepares in (False, True, True, False):
    if prepares:
        landlock.prepare_ruleset(lasting, version)
        landlock.prepare_ruleset(lasting, version)
    command(one, [shared, one])
    command(other, [shared, other])
landlock.prepare_ruleset([], version)
command(one, [shared, one])
print(len(os.listdir("/proc/self/fd")) - before, "descriptors more")
"""


@pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")
def test_what_is_prepared_has_no_rule_of_an_earlier_command(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("shared", "one", "other")]
    for place in places:
        place.mkdir()
    words = [sys.executable, "-c", PROGRAM, *map(str, places)]
    environment = {**os.environ, "PYTHONPATH": str(Path(landlock.__file__).parents[3])}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    *lines, descriptors = done.stdout.splitlines()
    assert len(lines) == 9
    assert all(line.startswith("True") for line in lines), done.stdout
    # The shared place, kept open; and what was prepared in the end for other rules.
    assert descriptors == "2 descriptors more"
