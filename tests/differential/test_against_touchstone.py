"""The released Touchstone 0.1.1 and `keystone run` on the same cases decide the same, except where a difference is
named that docs/compatibility.md tells of."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.command_line import ROOT
from support.compatibility import case_of, differences, released_verdicts
from support.differences import unexpected
from support.graded_tests import files_of, lay_out
from support.released import released
from support.released_touchstone import run_ours, run_released, write_cases
from support.touchstone import repository

CASES: dict[str, dict[str, Any]] = yaml.safe_load(
    (ROOT / "tests" / "data" / "differential" / "touchstone.yaml").read_text("utf-8")
)
IN_TRACES = {"what-was-not-observed-is-left-out"}
"""Differences that only a traced cell can show."""


@pytest.fixture(scope="session")
def programs() -> Path:
    return released("touchstone")


def test_cases_of_a_table(programs: Path, packages: Path, tmp_path: Path) -> None:
    write_cases(tmp_path, CASES, files_of(packages, "packages"))
    theirs, (ours, _) = run_released(programs, tmp_path), run_ours(tmp_path)
    named = {cell: CASES[cell.split()[0]].get("differs", ()) for cell in {*theirs, *ours}}
    assert unexpected(theirs, ours, named) == ""
    assert {name for names in named.values() for name in names} == differences("touchstone") - IN_TRACES


def test_cases_from_repositories(programs: Path, tmp_path: Path) -> None:
    """`source` and `fixtures` that git keeps."""
    report = (
        "failed=$(grep -vc good given)\n"
        "test $failed = 0 || failure='<failure/>'\n"
        """echo "<testsuite tests='1' failures='$failed'><testcase>$failure</testcase></testsuite>" > r.xml\n"""
    )
    files = {"given": "good\n", "part/in-part": "", "hidden-test/hidden/check.sh": report}
    commit = repository(tmp_path / "kept", files)
    whole = {"repo": (tmp_path / "kept").as_uri(), "commit": commit}
    grader = {"type": "command", "cmd": "test -s out && test -e .git"}
    hidden = {"type": "tests", "inject": ["hidden/check.sh"], "cmd": "sh check.sh", "junit_xml": "r.xml"}
    own = repository(tmp_path / "evals" / "worktree" / "repository", {"given": "good\n"})
    cases = {
        "clone": ("cp given out", {"source": whole, "graders": [grader]}),
        "part": ("ls -A > out", {"source": {**whole, "subdir": "part"}, "graders": [{**grader, "expect_exit": 1}]}),
        "worktree": (
            "cp given out",
            {"source": {"path": "repository", "isolation": "worktree", "commit": own}, "graders": [grader]},
        ),
        "hidden-test": ("test -e check.sh || echo good > given", {"fixtures": whole, "graders": [hidden]}),
        "hidden-test-fails": (
            "echo bad > given",
            {"fixtures": {**whole, "subdir": "hidden-test"}, "graders": [hidden, {**grader, "cmd": "true"}]},
        ),
    }
    write_cases(tmp_path, {name: {"prompt": prompt, "case": case} for name, (prompt, case) in cases.items()}, {})
    theirs, (ours, _) = run_released(programs, tmp_path), run_ours(tmp_path)
    assert unexpected(theirs, ours, {}) == ""
    assert {one.verdict for one in ours.values()} == {"pass", "fail"}


def test_cases_that_are_refused(programs: Path, tmp_path: Path) -> None:
    """What the released tool runs to the verdict that the table has. tests/test_compatibility.py has it refused."""
    expected = released_verdicts("touchstone")
    for name in expected:
        lay_out(tmp_path, {f"evals/{name}/case.yaml": yaml.safe_dump(case_of(name))})
    theirs = run_released(programs, tmp_path)
    assert {cell.split()[0]: one.verdict for cell, one in theirs.items()} == expected


FAKE_CLAUDE = """#!/usr/bin/python3
import json, sys
for event in json.loads(sys.argv[sys.argv.index("-p") + 1]):
    print(json.dumps(event))
"""
TRACED_HERE = """claude-code-stream:
  argv: [sh, -c, 'exec python3 "$KEYSTONE_AGENT_DIR/claude" -p "$1"', sh, "{prompt}"]
  dir: bin
  trace: {format: claude, stdout: true}
"""
"""The released tool finds `claude` on its PATH and reads what that prints; here it is declared, to the same effect."""


def spoken(*tools: tuple[str, dict[str, str]], cost: float = 0.1, tokens: int = 100) -> str:
    """What Claude Code prints of a run with these calls."""
    calls = [{"type": "tool_use", "id": f"t{n}", "name": name, "input": of} for n, (name, of) in enumerate(tools)]
    events = [{"type": "assistant", "message": {"id": f"m{n}", "content": [call]}} for n, call in enumerate(calls)]
    usage = {"input_tokens": tokens - 10, "output_tokens": 10}
    end = {"type": "result", "subtype": "success", "result": "done", "total_cost_usd": cost, "usage": usage}
    return json.dumps([*events, {**end, "is_error": False, "num_turns": len(calls)}])


READ, WRITE = ("Read", {"file_path": "src/a.py"}), ("Write", {"file_path": "src/a.py", "content": "x"})
BASH, MCP = ("Bash", {"command": "ls"}), ("mcp__db__query", {"sql": "select 1"})
TRACED: dict[str, tuple[str, dict[str, Any]]] = {
    "require": (spoken(READ, WRITE), {"type": "trace", "require_tools": [{"kind": "write"}, {"raw_name": "Read"}]}),
    "require-in-part": (spoken(READ), {"type": "trace", "require_tools": [{"kind": "write"}, {"kind": "read"}]}),
    "require-path": (spoken(WRITE), {"type": "trace", "require_tools": [{"kind": "write", "path_glob": "*/a.py"}]}),
    "forbid": (spoken(BASH), {"type": "trace", "forbid_tools": [{"kind": "execute"}], "max_tool_calls": 1}),
    "forbid-other": (spoken(MCP), {"type": "trace", "forbid_tools": [{"kind": "fetch"}, {"kind": "other"}]}),
    "calls": (spoken(READ, READ, BASH), {"type": "trace", "max_tool_calls": {"read": 1, "execute": 1}}),
    "tokens-and-cost": (spoken(READ), {"type": "trace", "max_tokens": 99, "max_cost_usd": 0.1}),
    "none-denied": (spoken(READ), {"type": "trace", "require_no_denied": True}),
    "efficient": (spoken(READ), {"type": "efficiency", "target_cost_usd": 0.1, "target_tokens": 100}),
    "inefficient": (
        spoken(READ, READ, READ, READ),
        {"type": "efficiency", "target_tool_calls": 2, "target_tokens": 25},
    ),
    "correct": (spoken(READ, WRITE), {"type": "tool_correctness", "expected": ["write", "read"]}),
    "correct-in-part": (spoken(READ, BASH, READ), {"type": "tool_correctness", "expected": ["read", "write"]}),
    "out-of-order": (spoken(READ, WRITE), {"type": "tool_correctness", "expected": ["write", "read"], "ordered": True}),
    "by-name": (
        spoken(READ, MCP),
        {"type": "tool_correctness", "match": "name", "expected": ["Read", {"kind": "other"}]},
    ),
}


def test_traces(programs: Path, tmp_path: Path) -> None:
    """Graders of traces, over the transcript that Claude Code writes."""
    cases = {
        name: {
            "harness": "claude-code-stream",
            "prompt": prompt,
            "case": {"observe": {"tracing": True}, "graders": [grader], "expect": {"pass_threshold": 0.6}},
        }
        for name, (prompt, grader) in TRACED.items()
    }
    write_cases(tmp_path, cases, {})
    lay_out(tmp_path, {"evals/harnesses.yaml": TRACED_HERE, "evals/bin/claude": FAKE_CLAUDE})
    (tmp_path / "evals" / "bin" / "claude").chmod(0o755)
    theirs = run_released(programs, tmp_path, {"PATH": f"{tmp_path}/evals/bin:/usr/bin:/bin"})
    ours, _ = run_ours(tmp_path)
    (difference,) = IN_TRACES & differences("touchstone")
    named = {"none-denied claude-code-stream m 1": [difference]}
    assert unexpected(theirs, ours, named) == ""
    assert {one.verdict for one in theirs.values()} == {"pass", "fail"}


NAMES, TEXTS = st.sampled_from(["a", "b", "d/a"]), st.sampled_from(["uno", "dos", "uno dos", "Uno"])
WRITES = st.lists(st.tuples(NAMES, TEXTS), max_size=3)
SHARES = st.sampled_from([0, 0.25, 0.5, 0.75, 1.0])
WEIGHTS = st.sampled_from([0.25, 0.5, 1, 1.0, 3, 7.5])
COMMANDS = st.one_of(
    st.builds("grep -qrx {1!r} {0}".format, NAMES, TEXTS), st.sampled_from(["true", "exit 2", "test -d d"])
)
GRADERS = st.one_of(
    st.fixed_dictionaries({"type": st.just("command"), "cmd": COMMANDS}, optional={"expect_exit": st.integers(0, 2)}),
    st.fixed_dictionaries(
        {"type": st.just("files"), "patterns": st.lists(st.sampled_from(["uno", r"dos\b", "[uU]no"]), min_size=1)},
        optional={"expect_dir": st.just("expected")},
    ),
    st.fixed_dictionaries(
        {"type": st.just("tests"), "cmd": st.just("sh given/report r.xml"), "junit_xml": st.just("r.xml")},
        optional={"pass_threshold": SHARES},
    ),
)
REPORT = """rm -f missing
for name in a b d/a; do
  out="$out<testcase name='$name'>$(test -e $name || { echo '<failure/>'; echo x >> missing; })</testcase>"
done
echo "<testsuite tests='3' failures='$(cat missing 2>/dev/null | grep -c x)'>$out</testsuite>" > "$1"
test ! -e missing
"""
"""Three tests: that each of the files is there."""


@st.composite
def made_up(draw: st.DrawFn) -> dict[str, Any]:
    """A case in which an agent writes files and some of the graders find them."""
    writes = draw(WRITES)
    graders = []
    for grader in draw(st.lists(GRADERS, min_size=1, max_size=4)):
        outer = draw(st.fixed_dictionaries({}, optional={"weight": WEIGHTS, "gate": st.booleans()}))
        if outer.get("gate"):
            grader.pop("pass_threshold", None)
        graders.append({**grader, **outer})
    return {
        "prompt": "mkdir -p d\n" + "\n".join(f"echo {text!r} > {name}" for name, text in writes) + "\n",
        "case": {"graders": graders, "source": {"path": "source"}, "expect": {"pass_threshold": draw(SHARES)}},
        "files": {f"expected/{name}": f"{text}\n" for name, text in draw(WRITES) or writes or [("a", "uno")]}
        | {"source/given/report": REPORT},
    }


@settings(max_examples=1, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
@given(batch=st.lists(made_up(), min_size=40, max_size=40, unique_by=json.dumps))
def test_made_up_cases(programs: Path, tmp_path: Path, batch: list[dict[str, Any]]) -> None:
    """One run of each for all of them."""
    place = Path(tempfile.mkdtemp(dir=tmp_path))
    write_cases(place, {f"case-{number}": case for number, case in enumerate(batch)}, {})
    theirs, (ours, _) = run_released(programs, place), run_ours(place)
    assert unexpected(theirs, ours, {}) == "", json.dumps(batch)
