"""What `setup` leaves is made once for several cells: none sees what another one's agent did to it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.setup_server import WHEEL, SetupServer, setup_server
from support.started_as import PLAIN_USER, keystone_in

FAMILY = "kept setup"
ATTACK = "changes, closes and removes what setup made, for the replicas after it"
USERS = pytest.mark.parametrize("user", [0, PLAIN_USER], ids=["root", "plain user"])
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="playing both root and a plain user needs root")

LEAVES = """
mkdir -p made "$HOME/.local/bin" "$HOME/closed" && head -c 8 /dev/urandom | od -An -tx1 > made/stamp
cp made/stamp "$HOME/stamp"; cp made/stamp "$TMPDIR/stamp"; rm gone; echo changed > kept; chmod 600 kept
printf '#!/bin/sh\\ncat made/stamp\\n' > "$HOME/.local/bin/tool"
chmod 755 "$HOME/.local/bin/tool"; chmod 500 "$HOME/closed"
sleep 1
"""
TELLS = """
import json, os, pathlib, stat, subprocess
home, temporary, work = (pathlib.Path(os.environ.get(name, ".")) for name in ("HOME", "TMPDIR", "-"))
run = lambda *words: subprocess.run(words, capture_output=True, text=True).stdout.strip()
folder = os.environ["VIRTUAL_ENV"]
area = pathlib.Path(folder).parents[1]
places = [folder, str(home), str(temporary), os.getcwd()]
areas = run("sh", "-c", 'grep -rhoa "cells/[0-9a-f]*" "$VIRTUAL_ENV" | sort -u').split()
print(json.dumps({
    "stamps": [(place / "stamp").read_text() for place in (work / "made", home, temporary)],
    "tool": run(str(home / ".local/bin/tool")), "tiny": run("tiny"), "pip": run("pip", "--version").split()[:1],
    "interpreter": run("python3", "-c", "import sys, tinything; print(sys.prefix, tinything.__file__)"),
    "own": areas == ["cells/" + area.name] and os.getcwd() == str(area / "workspace"),
    "modes": [oct(stat.S_IMODE(os.stat(path).st_mode)) for path in ("kept", home / "closed", home)],
    "owners": len({os.stat(path).st_uid for path in ("kept", home / "stamp", temporary / "stamp")} - {os.getuid()}),
    "files": sorted(os.listdir(".")), "kept": open("kept").read(),
}).replace(folder, "ENVIRONMENT"))
"""
SPOILS = """
top = area.parents[1]
for base in (top / "private", top / "cells", top, *map(pathlib.Path, places)):
    for place in (base, *base.glob("*"), *base.rglob("*")):
        for spoil in (lambda p: os.chmod(p, 0o777), lambda p: p.write_text("spoilt"), lambda p: p.unlink(),
                      lambda p: (p / "planted").write_text("spoilt"), lambda p: os.truncate(p, 0)):
            try:
                if place not in (top, top / "private", top / "cells"):
                    spoil(place)
            except OSError:
                pass
    try:
        if base != pathlib.Path.cwd() and base not in (top, top / "private", top / "cells"):
            os.chmod(base, 0)
        elif base != pathlib.Path.cwd():
            print("LISTED", os.listdir(base))
    except OSError:
        pass
"""
USES = """
(home / "own").write_text("1"), (home / "stamp").write_text("mine"), (work / "made/stamp").write_text("mine")
subprocess.run(["pip", "install", "--quiet", "nothing-at-all"], capture_output=True)
"""


def run(agent: str, user: int) -> tuple[list[dict[str, Any]], SetupServer]:
    """Three replicas, one after the other; what each found."""
    with tempfile.TemporaryDirectory(prefix="checkout-") as name, tempfile.TemporaryDirectory() as served:
        Path(name).chmod(0o755)
        (Path(name) / "work").mkdir()
        for file in ("gone", "kept"):
            (Path(name) / "work" / file).write_text("of the author\n")
        with setup_server(Path(served)) as server:
            called = keystone_in(None, Path(name), _spec(agent, [server.ask("/ran"), LEAVES], server), user)
        assert [cell["verdict"] for cell in called.cells] == ["pass"] * 3, called.out + called.err
        outputs = [cell["agent"]["output"].splitlines() for cell in called.cells]
        assert [len(lines) for lines in outputs] == [1] * 3, outputs
        return [json.loads(lines[0]) for lines in outputs], server


def _spec(agent: str, commands: Sequence[str], server: SetupServer) -> str:
    return json.dumps(
        {
            "version": 1,
            "id": "kept",
            "task": {"prompt": "do it"},
            "workspace": "work",
            "setup": {"packages": ["tinything"], "commands": list(commands), "env": server.for_pip},
            "agent": {"type": "command", "command": ["python3", "-c", agent], "must_exit_zero": True},
            "parallelism": {"replicas": 3, "max_concurrency": 1},
            "invariants": {"any": {"check": {"type": "file_absent", "path": "x"}}},
        }
    )


def as_setup_left_it(found: list[dict[str, Any]], server: SetupServer) -> None:
    assert found[0] == found[1] == found[2]
    first = found[0]
    stamp = first["stamps"][0]
    assert len(stamp.split()) == 8
    assert first == {
        "stamps": [stamp] * 3,
        "tool": stamp.strip(),
        "tiny": "tiny",
        "pip": ["pip"],
        "interpreter": first["interpreter"],
        "own": True,
        "modes": ["0o600", "0o500", "0o700"],
        "owners": 0,
        "files": ["kept", "made"],
        "kept": "changed\n",
    }
    prefix, module = first["interpreter"].split()
    assert prefix == "ENVIRONMENT"
    assert module.startswith("ENVIRONMENT/lib/")
    assert (server.count("/ran"), server.count(f"/{WHEEL}")) == (1, 1)


@USERS
@hostile(FAMILY, ATTACK, held_by="copies for each cell, of what was kept before an agent started")
@pytest.mark.slow
def test_what_an_agent_does_to_its_setup_reaches_no_other_cell(user: int) -> None:
    found, server = run(TELLS + SPOILS, user)
    as_setup_left_it(found, server)


@honest(FAMILY, ATTACK)
@pytest.mark.slow
def test_an_agent_that_works_with_what_setup_left_finds_all_of_it() -> None:
    found, server = run(TELLS + USES, user=0)
    as_setup_left_it(found, server)
