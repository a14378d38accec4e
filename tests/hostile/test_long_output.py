"""What an agent prints, however much: nothing of it may escape the checks that read it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.attack_runs import Played, Scenario, area, played, played_in
from support.attacks import honest, hostile
from support.command_line import ENVIRONMENT, ROOT
from support.hostile import attack
from support.model_server import ModelServer, answer

__all__ = ["area", "played"]

FAMILY = "long output"
PRINT = """
import json, pathlib, sys
text = "{word}".join(["x" * 1_500_000 + chr(10)] * 2)
how = {how!r}
if how == "file":
    pathlib.Path("answer.txt").write_text(text)
elif how == "json":
    print(json.dumps({{"output": text}}))
else:
    print(text)
    print(text, file=sys.stderr)
"""
"""3 MB with a word in the middle."""
OUTPUTS = {"stdout": "stdout", "json": {"json": "stdout"}, "file": {"file": "answer.txt"}}


def printing(how: str, word: str) -> str:
    return PRINT.format(how=how, word=word)


TOO_MUCH = """
import sys
line = b"x" * (1 << 20)
for stream, count in ((sys.stdout, {out}), (sys.stderr, {err})):
    for _ in range(count):
        stream.buffer.write(line)
open("made", "w")
"""

NO_PASSWORD = {"type": "regex", "pattern": r"(?s)\A(?!.*hunter2).*\Z"}
SCENARIOS = {
    **{
        f"secret, {how}": Scenario(
            printing(how, "hunter2"),
            {"no_password": NO_PASSWORD, "expected": {"type": "passfail", "expected_output": "hunter2"}},
            agent={"output": output},
        )
        for how, output in OUTPUTS.items()
    },
    **{
        f"none, {how}": Scenario(
            printing(how, ""),
            {
                "no_password": NO_PASSWORD,
                "whole": {"type": "regex", "pattern": r"\Ax{1500000}\nx{1500000}\n+\Z"},
            },
            agent={"output": output},
        )
        for how, output in OUTPUTS.items()
    },
    "too much": Scenario(
        TOO_MUCH.format(out=65, err=0),
        {
            "no_password": NO_PASSWORD,
            "stdout": {"type": "regex", "pattern": "x", "input_from": "stdout"},
            "exact": {"type": "exact", "expected": "no"},
            "made": {"type": "file_exists", "path": "made"},
            "runs": {"type": "command_exit", "command": "test -f made"},
        },
    ),
    "just kept": Scenario(
        TOO_MUCH.format(out=64, err=65),
        {"all": {"type": "regex", "pattern": r"\Ax+\Z", "input_from": "stdout"}},
    ),
}
IN_EACH = played_in("process", "bind")


@pytest.mark.parametrize("how", OUTPUTS)
@IN_EACH
@hostile(FAMILY, "a secret in the middle of 3 MB", held_by="the whole output on disk", sandbox="both")
@pytest.mark.slow
def test_what_stands_in_the_middle_is_found(played: Played, how: str) -> None:
    name = f"secret, {how}"
    assert played.statuses(name) == {"no_password": "fail", "expected": "pass"}, played.checks(name)
    shown = played.cell(name)["agent"]["output"]
    assert len(shown) < 100_000
    assert "cut" in shown


@pytest.mark.parametrize("how", OUTPUTS)
@IN_EACH
@honest(FAMILY, "a secret in the middle of 3 MB", sandbox="both")
def test_a_long_output_without_it_passes(played: Played, how: str) -> None:
    name = f"none, {how}"
    assert played.statuses(name) == {"no_password": "pass", "whole": "pass"}, played.checks(name)


@IN_EACH
@hostile(FAMILY, "more than is kept", held_by="checks that read it fail", sandbox="both")
def test_what_was_not_kept_whole_is_not_judged(played: Played) -> None:
    found = played.statuses("too much")
    assert found == {"no_password": "fail", "stdout": "fail", "exact": "fail", "made": "pass", "runs": "pass"}
    message = played.checks("too much")["exact"]["message"]
    assert "has 68,157,440 bytes; at most 67,108,864 can be judged" in message


@IN_EACH
@honest(FAMILY, "more than is kept", sandbox="both")
def test_what_was_just_kept_is_judged(played: Played) -> None:
    assert played.statuses("just kept") == {"all": "pass"}, played.checks("just kept")


def judged(area: Path, script: str) -> tuple[str, dict[str, Any]]:
    """What a judge was asked about this agent's output, and the check."""
    with ModelServer([answer(1)]) as server:
        called = attack(
            area, script, {"judge": {"type": "llm_as_judge", "criteria": "Is it good?"}}, environ=server.environ()
        )
    return server.requests[0].prompt, called.checks["judge"]


@hostile(FAMILY, "hides from a judge behind 3 MB", held_by="the cut is said to the judge")
def test_a_judge_is_told_what_it_does_not_see(area: Path) -> None:
    prompt, check = judged(area, "print('x' * 3_000_000)\nprint('hunter2')")
    assert "only the first 200,000 bytes of 3,000,009 are shown" in prompt
    assert len(prompt) < 210_000
    assert "200,000 bytes of 3,000,009" in check["message"]


@honest(FAMILY, "hides from a judge behind 3 MB")
def test_a_judge_of_a_short_output_is_told_of_no_cut(area: Path) -> None:
    prompt, check = judged(area, "print('x' * 150_000)")
    assert "x" * 150_000 in prompt
    assert "cut" not in prompt + check["message"]


GIGABYTE = "head -c 1G /dev/zero & head -c 1G /dev/zero >&2; wait"


@hostile(FAMILY, "fills our memory with 1 GB on each stream", held_by="bounded buffers and files")
def test_a_gigabyte_stays_out_of_our_memory(area: Path) -> None:
    code, peak = _measured(area, GIGABYTE)
    assert code == 1
    assert peak <= 200 << 10


@honest(FAMILY, "fills our memory with 1 GB on each stream")
def test_an_agent_that_prints_little_takes_little(area: Path) -> None:
    code, peak = _measured(area, "echo fine")
    assert code == 0
    assert peak <= 200 << 10


# A small process in between: the kernel counts as a program's peak what the process had that was forked for it.
_MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss)
"""


def _measured(area: Path, command: str) -> tuple[int, int]:
    """The exit code of a run, and the memory (KiB) that it and all that it started took at most."""
    document = {
        "version": 1,
        "id": "hostile",
        "task": {"prompt": "do it"},
        "agent": {"type": "command", "command": command, "timeout": "200s"},
        "invariants": {"prints": {"check": {"type": "regex", "pattern": "fine"}}},
    }
    (area / "keystone.yaml").write_text(json.dumps(document))
    run = [sys.executable, "-m", "keystone_action", "run", "keystone.yaml", "--output", "out"]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *run],
        cwd=area,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    code, peak = map(int, done.stdout.split())
    return code, peak
