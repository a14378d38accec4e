"""What agents leave to get credit from checks that read it, through the real command: each gets the score 0, the
verdict `fail` and a sentence that says what happened. Hidden tests and reports: test_bad_input_graders.py."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.bad_input import attack_all, earned, planting
from support.command_line import run_spec, spec
from support.driver import run_driven
from support.traces import event

OUTSIDE = "os.environ['KEYSTONE_AGENT_DIR']"
EXPECTED = {"graders/expected/b.txt": "b\n", "graders/expected/deep/b.txt": "b\n", "agent/b.txt": "b\n"}
LEFT = {
    "links outside": f"os.symlink('/etc/hostname', 'b.txt'); os.symlink({OUTSIDE}, 'deep')",
    "links by proc": "os.symlink('/proc/self/root/etc/hostname', 'b.txt'); os.symlink('/proc/self/cwd', 'deep')",
    "loops of links": "os.symlink('b.txt', 'b.txt'); os.symlink('.', 'deep')",
    "FIFOs": "os.mkfifo('b.txt'); os.mkdir('deep'); os.mkfifo('deep/b.txt')",
    "directories": "os.makedirs('b.txt'); os.makedirs('deep/b.txt')",
    "sparse files": "os.mkdir('deep'); [open(name, 'w').truncate(1 << 40) for name in ('b.txt', 'deep/b.txt')]",
}
SAID_OF_FILES = {
    "links outside": "leads through a link out of the workspace",
    "loops of links": "leads through a loop of links",
    "FIFOs": "is a FIFO, not a regular file",
    "sparse files": "it has 1,099,511,627,776 bytes, expected 2",
}


def test_links_and_the_like_in_place_of_expected_files(tmp_path: Path) -> None:
    _, found = attack_all(tmp_path, LEFT, {"type": "files", "expect_dir": "graders/expected"}, author=EXPECTED)
    assert earned(found) == {}
    for name, said in SAID_OF_FILES.items():
        assert said in found[name]["message"], name


@pytest.mark.parametrize("link", ["/etc/passwd", "gone", "a", ".", "FIFO"])
def test_an_expect_dir_full_of_links_is_refused(tmp_path: Path, link: str) -> None:
    """Nothing that leads out of it is ever expected of an agent, and nothing is left out silently."""
    (tmp_path / "expected").mkdir()
    (tmp_path / "expected" / "b").write_text("b")
    place = tmp_path / "expected" / "a"
    if link == "FIFO":
        os.mkfifo(place)
    else:
        place.symlink_to(link)
    called = run_spec(tmp_path, spec("{type: command, command: 'cp /etc/passwd a; echo b > b'}", EXPECT_DIR))
    assert called.code == 2, called.out + called.err
    assert "keystone.yaml:6:" in called.err
    assert "'a'" in called.err
    assert not called.has_traceback
    assert not called.output.exists()


EXPECT_DIR = "{type: files, expect_dir: expected}"


@pytest.mark.parametrize(
    "check",
    [
        {"type": "regex", "pattern": "^(a|a)*$", "timeout": "1s"},
        {"type": "files", "patterns": ["^(a|a)+$"], "timeout": "1s"},
        {"type": "file_content", "path": "x.txt", "pattern": "^(a|aa)+$", "timeout": "1s"},
        {"type": "json", "path": "x.json", "values": {"x": {"matches": "^(a|a)*$"}}, "timeout": "1s"},
    ],
    ids=lambda check: check["type"],
)
@pytest.mark.slow
def test_a_pattern_that_backtracks_for_ever(tmp_path: Path, check: dict[str, Any]) -> None:
    text = "a" * 5000 + "!"
    agent = f"print({text!r}, end='')\n" + planting({"x.txt": text, "x.json": json.dumps({"x": text})})
    # The pattern's own limit ends it: on a busy machine the stop from outside could come first, so that waits longer.
    run = partial(run_driven, place="within('runner.cell.judge', GRACE_SECONDS=60.0)")
    _, found = attack_all(tmp_path, {"one": agent}, check, run=run)
    assert earned(found) == {}
    assert "hit the time limit of the check" in found["one"]["message"]


DOCUMENTS = {
    "deep lists": "write('r.json', '[' * 100000 + ']' * 100000)",
    "deep mappings": "write('r.json', '{\"a\":' * 5000 + '1' + '}' * 5000)",
    "deep beside": 'write(\'r.json\', \'{"ok": true, "x": \' + "[" * 500 + "]" * 500 + "}")',
    "huge": 'write("r.json", \'{"ok": true, "x": "\' + "x" * 9000000 + \'"}\')',
    "sparse": "open('r.json', 'w').truncate(1 << 40)",
    "a huge number": 'write("r.json", \'{"ok": true, "n": 1\' + "0" * 100000 + "}")',
    "no number": planting({"r.json": '{"ok": true, "n": NaN}'}),
    "infinite": planting({"r.json": '{"ok": true, "n": -Infinity}'}),
    "a key twice": planting({"r.json": '{"ok": false, "ok": true}'}),
    "two documents": planting({"r.json": '{"ok": true}{"ok": true}'}),
    "another encoding": "Path('r.json').write_bytes('{\"ok\": true}'.encode('utf-16'))",
    "another type": planting({"r.json": '{"ok": 1}'}),
    "text": planting({"r.json": '{"ok": "true"}'}),
    "nothing": planting({"r.json": ""}),
    "a FIFO": "os.mkfifo('r.json')",
    "a directory": "os.mkdir('r.json')",
    "a link outside": f"os.symlink({OUTSIDE} + '/good.json', 'r.json')",
    "absent": "pass",
}
SAID_OF_JSON = {
    "deep lists": "nested too deep",
    "huge": "at most 8,388,608 are read",
    "no number": "NaN is not JSON",
    "a key twice": "a key is there twice",
    "another type": "expected true (boolean), found 1 (integer)",
    "a FIFO": "is a FIFO, not a regular file",
    "a link outside": "leads through a link out of the workspace",
    "absent": "r.json does not exist",
}


def test_deep_huge_and_odd_json(tmp_path: Path) -> None:
    check = {"type": "json", "path": "r.json", "values": {"ok": True}}
    _, found = attack_all(tmp_path, DOCUMENTS, check, author={"agent/good.json": '{"ok": true}'})
    assert earned(found) == {}
    for name, said in SAID_OF_JSON.items():
        assert said in found[name]["message"], name


def test_json_that_keeps_its_schema_busy_for_ever(tmp_path: Path) -> None:
    schema = {"properties": {"items": {"items": {"pattern": "^(a|a)*$"}}}}
    agent = "write('r.json', json.dumps({'items': ['a' * 40 + '!']}))"
    check = {"type": "json", "path": "r.json", "schema": schema, "timeout": "2s"}
    _, found = attack_all(tmp_path, {"one": agent}, check)
    assert earned(found) == {}
    assert "it took longer than" in found["one"]["message"]


@pytest.mark.parametrize(
    "check",
    [
        {"type": "budget", "max_cost_usd": 1},
        {"type": "efficiency", "target_cost_usd": 1},
        {"type": "trace", "max_cost_usd": 1},
    ],
    ids=lambda check: check["type"],
)
def test_a_trace_with_a_negative_cost(tmp_path: Path, check: dict[str, Any]) -> None:
    lines = {
        "negative": [event("usage", input_tokens=1, output_tokens=1, cost_usd=-5)],
        "negative after another": [event("usage", cost_usd=0.5), event("usage", cost_usd=-0.1)],
        "text": [event("usage", cost_usd="free")],
    }
    attacks = {name: "".join(f"print({json.dumps(line)!r})\n" for line in told) for name, told in lines.items()}
    attacks["not a number"] = attacks["negative"].replace("-5", "NaN")
    attacks["infinite"] = attacks["negative"].replace("-5", "-1e999")
    trace = {"trace": {"format": "touchstone", "stdout": True}}
    _, found = attack_all(tmp_path, attacks, check, of_agent=trace)
    assert earned(found) == {}
    for entry in found.values():
        assert "the trace on stdout is malformed" in entry["message"]


SOURCES = {
    "only a comment": planting({"a.py": "# def add(a, b): return a + b\n"}),
    "only a text": planting({"a.py": 'def add(a, b):\n    """return a + b"""\n'}),
    "endless brackets": "write('a.py', 'x = ' + '(' * 100000 + ')' * 100000)",
    "a NUL": planting({"a.py": "def add(a, b): return a + b\0"}),
    "huge": "write('a.py', 'x = 1\\n' * 3000000)",
    "a FIFO": "os.mkfifo(retired('a.py'))",
    "a link outside": f"os.symlink({OUTSIDE} + '/agent.py', retired('a.py'))",
    "gone": "retired('a.py')",
}


def test_sources_that_implement_nothing(tmp_path: Path) -> None:
    check = {"type": "implemented", "files": ["a.py"], "gate": True, "weight": 1.0}
    _, found = attack_all(tmp_path, SOURCES, check, start={"a.py": "def add(a, b): pass\n"})
    assert earned(found) == {}
    assert {entry["cell"]["composite"] for entry in found.values()} == {0.0}
