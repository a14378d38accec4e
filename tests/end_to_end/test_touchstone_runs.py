"""What a Touchstone case has besides graders, by `keystone run case.yaml`: harnesses, sources, fixtures, setup."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.command_line import ROOT, keystone
from support.graded_tests import lay_out
from support.local_index import pytest_index
from support.model_agents import CLIENT, REAL_KEY, behind, calls
from support.touchstone import both_models, models_of, repository, run_case, run_cases, write_case

ECHO = {"matrix": {"harnesses": ["echo"], "models": ["m"]}}
DONE = '  - {type: command, cmd: "test -f done"}\n'


def test_echo_writes_the_prompt_and_says_it(tmp_path: Path) -> None:
    task = {"prompt": "do\nit", "system_prompt": "you are x", "instruction_files": ["style.md"]}
    cases = {}
    for name, wanted in (("right", "be {{ kind }}"), ("wrong", "be quick")):
        graders = f'  - {{type: files, patterns: ["{wanted.replace("{", "[{]")}"]}}\n'
        graders += f'  - {{type: command, cmd: \'test "$(tail -c 14 ANSWER.md)" = "{wanted}"\'}}\n'
        cases[name] = {"graders": graders, "author": {"style.md": "be {{ kind }}"}, "task": task, **ECHO}
    called = run_cases(tmp_path, cases)
    assert called.code == 1, called.out + called.err
    assert [cell["verdict"] for cell in called.cells] == ["pass", "fail"]
    for cell in called.cells:
        assert cell["agent"]["output"] == "you are x\n\ndo\nit\n\n## style.md\nbe {{ kind }}"
        assert cell["params"] == {"harness": "echo", "model": "m"}


def test_harnesses_models_and_trials_are_cells(tmp_path: Path) -> None:
    matrix = {"harnesses": ["echo", "mine"], "models": ["good", "bad"], "trials": 2}
    write_case(tmp_path, DONE, "if good: Path('done').touch()", matrix=matrix)
    called = run_case(tmp_path)
    passed = {tuple(cell["params"].values()) for cell in called.cells if cell["verdict"] == "pass"}
    assert len(called.cells) == 8
    assert passed == {("mine", "good")}
    only = run_case(tmp_path, "--param", "harness=mine", "--param", "model=good", "--replicas", "1", "--output", "two")
    assert only.code == 0, only.out + only.err


def test_a_harness_that_ends_badly_is_graded(tmp_path: Path) -> None:
    found = both_models(tmp_path, DONE, "if good: Path('done').touch()\nsys.exit(3)")
    assert [cell["agent"]["exit_code"] for cell in (found.good, found.bad)] == [3, 3]


def test_a_harness_is_stopped_at_its_own_limit_and_graded(tmp_path: Path) -> None:
    write_case(tmp_path, DONE, "import time; Path('done').touch(); good or time.sleep(60)")
    text = (tmp_path / "harnesses.yaml").read_text().replace("timeout_s: 60", "timeout_s: 2")
    (tmp_path / "harnesses.yaml").write_text(text + "  env: {A: '{{ b }}'}\n")
    called = run_case(tmp_path)
    assert called.code == 0, called.out + called.err
    assert {cell["params"]["model"]: cell["agent"]["timed_out"] for cell in called.cells} == {
        "good": False,
        "bad": True,
    }


def test_the_source_is_copied_without_what_touchstone_leaves_out(tmp_path: Path) -> None:
    left_out = [".venv/a", "deep/node_modules/b", "deep/__pycache__/c", "d.pyc", ".git/e"]
    author = {f"source/{name}": "x" for name in [*left_out, "kept/.hidden", "deep/venv/f"]}
    listed = "find . -type f ! -name done ! -name ANSWER.md | sort | tr '\\\\n' ' '"
    graders = f'  - {{type: command, cmd: "test \\"$({listed})\\" = \\"./deep/venv/f ./kept/.hidden \\""}}\n'
    found = both_models(tmp_path, graders, "good or Path('other').touch()", author=author, source={"path": "source"})
    assert found.bad["composite"] == 0.0


def test_what_graders_name_is_not_in_a_source_around_the_case(tmp_path: Path) -> None:
    agent = "import os\nPath('found.txt').write_text(' '.join(sorted(os.listdir()))) if good else None"
    author = {"hidden/x.test.js": "secret", "graders/rubric.md": "secret", "README": "x"}
    graders = '  - {type: tests, cmd: "test -f found.txt", inject: [hidden/x.test.js]}\n'
    graders += "  - {type: model_judge, rubric: graders/rubric.md}\n"
    graders += '  - {type: command, cmd: "test \\"$(cat found.txt)\\" = \\"README graders harness hidden\\""}\n'
    graders += '  - {type: command, cmd: "test -z \\"$(ls graders hidden | grep .[jm])\\""}\n'
    both_models(tmp_path, graders, agent, author=author, source={"path": "."})


def test_a_source_from_a_repository_at_its_commit(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    origin = tmp_path_factory.mktemp("origin")
    commit = repository(origin, {"app/a.txt": "then", "b.txt": "b"})
    lay_out(origin, {"app/a.txt": "now"})
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "2"], cwd=origin, check=True)
    sources = {
        "path": {"repo": str(origin), "commit": commit},
        "url": {"repo": origin.as_uri(), "commit": commit[:12]},
        "subdir": {"repo": origin.as_uri(), "commit": commit, "subdir": "app"},
        "worktree": {"path": "../work", "commit": commit, "isolation": "worktree"},
    }
    subprocess.run(["git", "clone", "-q", str(origin), str(tmp_path / "work")], check=True)
    cases = {}
    for kind, source in sources.items():
        place, history = ("a.txt", "! test -e .git") if kind == "subdir" else ("app/a.txt", "test -d .git")
        graders = f'  - {{type: files, patterns: ["^then$"]}}\n  - {{type: command, cmd: "grep -q then {place}"}}\n'
        graders += f'  - {{type: command, cmd: "{history}"}}\n'
        cases[kind] = {"graders": graders, "agent": f"good or Path('{place}').unlink()", "source": source}
    called = run_cases(tmp_path, cases)
    assert called.code == 1, called.out + called.err
    for kind in sources:
        models_of(called, kind)


def test_hidden_tests_from_a_repository_of_fixtures(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    origin = tmp_path_factory.mktemp("origin")
    test = 'const {add} = require("./solution.js"); require("node:test")("x", () => { if (add(1, 2) != 3) throw 1; });'
    commit = repository(origin, {"example/hidden/x.test.js": test})
    graders = '  - {type: tests, cmd: "node --test x.test.js", inject: ["./hidden/x.test.js"]}\n'
    agent = """import os, glob
assert not [name for name in glob.glob('/tmp/keystone_clones_*/*') if os.access(name, os.R_OK)]
Path('solution.js').write_text(f'exports.add = (a, b) => a {"+" if good else "-"} b;')"""
    fixtures = {"repo": origin.as_uri(), "commit": commit}
    before = set(Path("/tmp").glob("keystone_clones_*"))
    found = both_models(tmp_path, graders, agent, fixtures=fixtures)
    assert found.good["agent"]["exit_code"] == 0
    assert set(Path("/tmp").glob("keystone_clones_*")) <= before


def test_fixtures_that_cannot_be_had_are_exit_2_with_what_git_said(tmp_path: Path) -> None:
    graders = '  - {type: tests, cmd: "true", inject: [a.py]}\n'
    write_case(tmp_path, graders, fixtures={"repo": "https://u:secret@localhost:1/x.git", "commit": "main"}, **ECHO)
    called = run_case(tmp_path)
    assert called.code == 2
    first = called.err.splitlines()[0]
    assert "case.yaml:" in first
    assert "fixtures: the repository can't be had at 'main': " in first
    assert "localhost" in first.lower()
    assert "secret" not in first


STUBBED = """import math  # a comment
class Sums:
    async def add(self, a, b):
        \"\"\"The sum.\"\"\"
        # secret
        return a + b
def outer():
    def add(a): return a + 1  # secret
    return add
def other(): return 1
"""


def test_stubs_lose_their_bodies_before_the_agent(tmp_path: Path) -> None:
    agent = (
        "Path('seen.txt').write_text(Path('a.py').read_text())\nif good: Path('a.py').write_text('def add(): return 1')"
    )
    graders = "  - {type: implemented, gate: true}\n"
    graders += '  - {type: command, cmd: "! grep -q secret seen.txt && test $(grep -c NotImpl seen.txt) = 2"}\n'
    graders += '  - {type: command, cmd: "grep -q The.sum seen.txt && grep -q return.1 seen.txt"}\n'
    setup = {"stub": [{"file": "a.py", "function": "add"}], "run": ["grep -c NotImpl a.py > count", "test -s count"]}
    author = {"source/a.py": STUBBED}
    found = both_models(tmp_path, graders, agent, author=author, source={"path": "source"}, setup=setup)
    assert found.bad["composite"] == 0.0


def test_a_stub_of_what_is_not_there_is_exit_3(tmp_path: Path) -> None:
    stubs = {
        "b.py": ("add", "setup.stub: b.py does not exist"),
        "a.py": ("sub", "setup.stub: there is no function 'sub' in a.py"),
        "bad.py": ("add", "setup.stub: bad.py can't be stubbed: it is not Python (line 1: "),
        "link.py": ("add", "setup.stub: link.py"),
    }
    cases = {
        file.removesuffix(".py"): {
            "graders": DONE,
            "source": {"path": "../source"},
            "setup": {"stub": [{"file": file, "function": function}]},
            **ECHO,
        }
        for file, (function, _) in stubs.items()
    }
    lay_out(tmp_path, {"source/a.py": STUBBED, "source/bad.py": "def ("})
    (tmp_path / "source" / "link.py").symlink_to("/etc/hostname")
    called = run_cases(tmp_path, cases)
    assert called.code == 3, called.out + called.err
    errors = [cell["error"] for cell in called.cells]
    assert len(errors) == len(stubs)
    for error, (_, message) in zip(errors, stubs.values(), strict=True):
        assert message in error
        assert "case.yaml:" in error


@pytest.mark.slow
def test_requirements_are_there_for_harness_and_graders(tmp_path: Path, packages: Path) -> None:
    """As cases have it: pytest comes with the environment, and hidden tests are run with it: one that passes, and one
    that doesn't."""
    agent = "import pytest\nPath('a.py').write_text(f'A = {good}')"
    graders = '  - {type: pytest, inject: [test_a.py]}\n  - {type: command, cmd: "test $KIND = kept"}\n'
    test = "import a\ndef test_a(): assert a.A\ndef test_b(): assert not a.A\n"
    author = {"r.txt": "pytest >= 1  # again\n", "test_a.py": test}
    (tmp_path / "index").mkdir()
    with pytest_index(tmp_path / "index", packages) as variables:
        environment = {"requirements": ["pytest"], "requirement_files": ["r.txt"], "env": {**variables, "KIND": "kept"}}
        matrix = {"harnesses": ["mine"], "models": ["good"]}
        write_case(tmp_path, graders, agent, author=author, environment=environment, matrix=matrix)
        called = run_case(tmp_path)
    assert called.code == 1, called.out + called.err
    assert called.cells[0]["agent"]["exit_code"] == 0
    assert {name: check["score"] for name, check in called.checks.items()} == {"pytest": 0.5, "command": 1.0}


def test_setup_that_fails_is_exit_3(tmp_path: Path) -> None:
    write_case(tmp_path, DONE, setup={"run": ["echo made; false"]}, **ECHO)
    called = run_case(tmp_path)
    assert called.code == 3
    assert "`echo made; false`" in called.cells[0]["error"]


def test_claude_code_by_its_own_transcript(tmp_path: Path) -> None:
    """A stand-in asks once and prints a real transcript, whose calls are those that the model asked for: these are
    graded, and the last words of the transcript are the answer."""
    transcript = (ROOT / "tests/data/traces/claude-code-2.1.197.jsonl").read_text("utf-8")
    program = '#!/bin/sh\ncat > prompt.txt\nprintf "%s " "$@" > arguments.txt\npython3 ask.py && cat transcript.jsonl\n'
    asks = CLIENT + 'ask([user("do it")])\n'
    author = {"source/bin/claude": program, "source/transcript.jsonl": transcript, "source/ask.py": asks}
    write_case(
        tmp_path,
        "  - {type: trace, require_tools: [{kind: execute}]}\n"
        "  - {type: command, cmd: \"grep -q 'do it' prompt.txt && grep -q -e '--model=good' arguments.txt\"}\n"
        "  - {type: efficiency, target_tool_calls: 100}\n",
        author=author,
        source={"path": "source"},
        environment={"kind": "command", "commands": ["true"], "env": {"PATH": "bin:/usr/local/bin:/usr/bin:/bin"}},
        matrix={"harnesses": ["claude-code", "claude-code-stream"], "models": ["good"]},
    )
    (tmp_path / "source" / "bin" / "claude").chmod(0o755)
    told = [json.loads(line) for line in transcript.splitlines()]
    parts = [part for one in told if one.get("type") == "assistant" for part in one["message"]["content"]]
    asked = [(part["id"], part["name"], part["input"]) for part in parts if part["type"] == "tool_use"]
    with behind(calls(*asked)) as (_, environ):
        called = run_case(tmp_path, environ=environ)
    assert called.code == 0, called.out + called.err
    result = next(json.loads(line)["result"] for line in transcript.splitlines() if '"type":"result"' in line)
    assert [cell["agent"]["output"].strip() for cell in called.cells] == [result.strip()] * 2
    assert {cell["trace"]["source"] for cell in called.cells} == {"gateway"}
    assert REAL_KEY not in called.err + called.out


def test_a_harness_that_is_not_installed_is_exit_3(tmp_path: Path) -> None:
    write_case(tmp_path, DONE, matrix={"harnesses": ["codex"], "models": ["m"]})
    called = run_case(tmp_path, environ={"OPENAI_API_KEY": "sk-not-shown-anywhere"})
    assert called.code == 3
    assert "Codex: its program codex is not in this sandbox" in called.cells[0]["error"]


def test_a_bad_case_is_exit_2_at_its_line_and_nothing_runs(tmp_path: Path) -> None:
    write_case(tmp_path, "  - {type: comand, cmd: 'true'}\n", matrix={"harnesses": ["ecko"], "models": ["m"]})
    called = run_case(tmp_path)
    assert called.code == 2
    assert "case.yaml:3:24: unknown harness 'ecko'" in called.err
    assert "case.yaml:5:12: unknown grader type 'comand'" in called.err
    assert not (tmp_path / "out").exists()


def test_a_directory_of_cases_is_searched(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_case(tmp_path / name, '  - {type: command, cmd: "test -s ANSWER.md"}\n', id=name, **ECHO)
    called = keystone("run", ".", "--output", "out", directory=tmp_path)
    assert called.code == 0, called.out + called.err
    assert [spec["id"] for spec in called.document["specs"]] == ["one", "two"]
