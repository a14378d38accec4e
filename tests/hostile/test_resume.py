"""`--resume` goes on with one run: what was graded of another one is never shown as this one's."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.attacks import honest, hostile
from support.command_line import keystone
from support.resumed_runs import OTHER, SPEC, change_cell, git, lines, make_checkout, project, run

__all__ = ["project"]


@honest(
    "resume",
    "verdicts of another commit, script, folder or threshold",
    "a journal that is edited",
    "a verdict that is edited",
    "a journal of no known run",
)
def test_the_same_run_goes_on_where_it_was(project: Path) -> None:
    (project / "README.md").write_text("which no spec names")
    os.utime(project / "start" / "a.txt")
    resumed = run(project, "--resume", "out")
    assert (resumed.code, resumed.document["counts"]["passed"]) == (0, 3), resumed.err
    assert "3 cells, 2 of them finished before" in resumed.err
    assert [line.get("id") for line in lines(project)] == [None, "suite.r0", "suite.r1", "suite.r2"]
    assert run(project, "--resume", "out").document["run_id"] == resumed.document["run_id"]


CHANGES: dict[str, tuple[Callable[[Path], object], tuple[str, ...], str]] = {
    "threshold": (lambda _: None, ("--threshold", "0.5"), "the threshold was each spec's own and is 0.5"),
    "fail on skipped": (lambda _: None, ("--fail-on-skipped",), "fail-on-skipped was false and is true"),
    "fail on stale": (lambda _: None, ("--fail-on-stale",), "fail-on-stale was false and is true"),
    "commit": (
        lambda top: git(top, "commit", "-q", "--allow-empty", "-m", "second"),
        (),
        "the commit was ",
    ),
    "spec": (
        lambda top: (top / "keystone.yaml").write_text(SPEC.replace("0.8", "0.3")),
        (),
        "the spec suite has changed since",
    ),
    "script": (
        lambda top: (top / "checks" / "holds.sh").write_text("#!/bin/sh\nexit 1\n"),
        (),
        "the file checks/holds.sh of suite has changed since",
    ),
    "prompt": (lambda top: (top / "prompt.md").write_text("Don't."), (), "the file prompt.md of suite has changed"),
    "workspace": (lambda top: (top / "start" / "b").touch(), (), "the folder start of suite has changed since"),
    "agent": (
        lambda top: (top / "code" / "answer.txt").write_text("x"),
        (),
        "the folder code of suite has changed since",
    ),
}


@hostile("resume", "verdicts of another commit, script, folder or threshold", held_by="the run's identity")
@pytest.mark.parametrize("what", CHANGES)
def test_another_run_is_refused_by_name_before_anything_runs(project: Path, what: str) -> None:
    change, words, said = CHANGES[what]
    change(project)
    before = (project / "out" / "journal.jsonl").read_bytes()
    resumed = run(project, "--resume", "out", *words)
    assert resumed.code == 2, resumed.err
    assert f"this is not the run that is to be resumed: {said}" in resumed.err
    assert "finished before" not in resumed.err
    assert (project / "out" / "journal.jsonl").read_bytes() == before


GIVEN = SPEC.replace("dir: code}", "dir: code, env: {MODEL: '{{ env.MODEL }}', KEY: '{{ env.THE_KEY }}'}}")


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A finished run whose agent is given two variables of ours."""
    for name in ("start", "code", "checks"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "answer.txt").write_text("two")
    (tmp_path / "checks" / "holds.sh").write_text("#!/bin/sh\necho '{\"passed\": true}'\n")
    (tmp_path / "prompt.md").write_text("Do it.\n")
    (tmp_path / "keystone.yaml").write_text(GIVEN)
    assert run(tmp_path, "--output", "out", MODEL="small", THE_KEY="first-key").code == 0
    return tmp_path


@hostile("resume", "verdicts on an agent that was given another variable", held_by="the run's identity")
def test_another_variable_for_the_agent_is_another_run(given: Path) -> None:
    resumed = run(given, "--resume", "out", MODEL="large", THE_KEY="first-key")
    assert resumed.code == 2
    assert "the variable MODEL that the agent of suite is given has changed since" in resumed.err


@honest("resume", "verdicts on an agent that was given another variable")
def test_another_key_for_the_agent_is_no_other_run(given: Path) -> None:
    assert run(given, "--resume", "out", MODEL="small", THE_KEY="second-key").code == 0


def test_another_judge_is_refused_where_one_is_asked(tmp_path: Path) -> None:
    judged = "  judged: {check: {type: llm_as_judge, criteria: good}}\n"
    for name, checks in {"judged": judged, "plain": ""}.items():
        folder = tmp_path / name
        folder.mkdir()
        plain = OTHER.replace("invariants: {a: {check: {type: file_absent, path: a}}}\n", "invariants:\n")
        (folder / "keystone.yaml").write_text(f"{plain}  a: {{check: {{type: file_absent, path: a}}}}\n{checks}")
        assert run(folder, "--output", "out", KEYSTONE_JUDGE_FAST="claude-one").code == 0
        assert run(folder, "--resume", "out", KEYSTONE_JUDGE_FAST="claude-one").code == 0
    assert run(tmp_path / "plain", "--resume", "out", KEYSTONE_JUDGE_FAST="claude-two").code == 0
    refused = run(tmp_path / "judged", "--resume", "out", KEYSTONE_JUDGE_FAST="claude-two")
    assert refused.code == 2
    assert "the judge judge-fast of other was anthropic:claude-one and is anthropic:claude-two" in refused.err


def test_the_selection_may_be_another(project: Path) -> None:
    """5.4: "the selection is compared by `merge` alone, the shard's index never"."""
    fewer = run(project, "--resume", "out", "--filter", "suite.r0")
    assert (fewer.code, [cell["id"] for cell in fewer.cells]) == (0, ["suite.r0"]), fewer.err
    more = run(project, "--resume", "out", "--replicas", "4", "--shard", "2/2")
    assert (more.code, [cell["id"] for cell in more.cells]) == (0, ["suite.r1", "suite.r3"]), more.err


def test_a_spec_that_has_cells_only_now_is_remembered_too(tmp_path: Path) -> None:
    (tmp_path / "evals").mkdir()
    check = "check: {type: custom, script: %s.sh, runs_in: sandbox}"
    for name in ("one", "two"):
        text = OTHER.replace("id: other", f"id: {name}").replace("check: {type: file_absent, path: a}", check % name)
        (tmp_path / "evals" / f"{name}.keystone.yaml").write_text(text)
        (tmp_path / "evals" / f"{name}.sh").write_text("#!/bin/sh\necho '{\"passed\": true}'\n")
    assert run(tmp_path, "--output", "out", "--filter", "one", spec="evals").code == 0
    (tmp_path / "evals" / "two.sh").write_text('#!/bin/sh\necho \'{"passed": true, "message": "new"}\'\n')
    assert run(tmp_path, "--resume", "out", spec="evals").code == 0, "nothing of two had run"
    (tmp_path / "evals" / "two.sh").write_text("#!/bin/sh\nexit 1\n")
    refused = run(tmp_path, "--resume", "out", spec="evals")
    assert (refused.code, "the file two.sh of two has changed since" in refused.err) == (2, True), refused.err


def test_isolation_is_the_weakest_of_the_cells(project: Path) -> None:
    """Cells that ran without isolation don't get it by being shown beside others."""
    change_cell(
        project,
        sandbox={"kind": "process", "isolation": ["none"], "limits": "watched", "not_enforced": ["no Landlock"]},
    )
    resumed = run(project, "--resume", "out")
    assert resumed.code == 0, resumed.err
    assert resumed.document["sandbox"]["isolation"] == ["none"]
    assert resumed.document["sandbox"]["not_enforced"] == ["no Landlock"]
    others = run(project, "--resume", "out", "--filter", "suite.r[12]")
    assert "none" not in others.document["sandbox"]["isolation"]


def test_results_of_other_runs_in_the_workspace_are_no_difference(tmp_path: Path) -> None:
    (tmp_path / "keystone.yaml").write_text(OTHER.replace("agent:", "workspace: .\nagent:"))
    assert run(tmp_path, "--output", "out").code == 0
    assert run(tmp_path, "--output", "other").code == 0
    assert run(tmp_path).code == 0
    again = run(tmp_path, "--resume", "out")
    assert again.code == 0, again.err


@hostile("results", "an earlier run's results in the workspace", held_by="left out of the copy, by its first line")
def test_results_of_other_runs_are_not_copied_for_the_agent(tmp_path: Path) -> None:
    text = OTHER.replace("agent: {type: none}", 'workspace: .\nagent: {type: command, command: "find . > found"}')
    check = "check: {type: file_content, path: found, contains: notes, not_contains: [journal, results.json]}"
    (tmp_path / "keystone.yaml").write_text(text.replace("check: {type: file_absent, path: a}", check))
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "events.jsonl").write_text('{"identity": 1}\n')
    for place in ("one", "some/where/two", "three"):
        called = run(tmp_path, "--output", place)
        assert called.code == 0, called.out


@honest("results", "an earlier run's results in the workspace")
def test_a_folder_of_the_authors_with_names_like_those_of_results_is_copied(tmp_path: Path) -> None:
    text = OTHER.replace("agent: {type: none}", 'workspace: .\nagent: {type: command, command: "find . > found"}')
    check = "check: {type: file_content, path: found, contains: [data/results.json, data/journal.jsonl]}"
    (tmp_path / "keystone.yaml").write_text(text.replace("check: {type: file_absent, path: a}", check))
    (tmp_path / "data").mkdir()
    for name in ("results.json", "journal.jsonl"):
        (tmp_path / "data" / name).write_text('{"mine": 1}\n')
    called = run(tmp_path, "--output", "one")
    assert called.code == 0, called.out


def test_the_folder_of_a_run_is_named_like_it(tmp_path: Path) -> None:
    (tmp_path / "keystone.yaml").write_text(OTHER)
    assert run(tmp_path).code == 0
    (folder,) = (tmp_path / ".keystone" / "runs").iterdir()
    assert json.loads((folder / "results.json").read_text())["run_id"] == folder.name


@pytest.mark.parametrize("change", ["checks/holds.sh", "start/a.txt"])
@hostile("resume", "shards of different scripts and folders", held_by="the run's identity")
def test_shards_of_different_runs_are_not_joined(project: Path, change: str) -> None:
    assert run(project, "--shard", "1/2", "--output", "shards/1").code == 0
    with (project / change).open("a") as file:
        file.write("# changed\n")
    assert run(project, "--shard", "2/2", "--output", "shards/2").code == 0
    joined = keystone("merge", "shards", "--output", "joined", directory=project)
    assert joined.code == 3
    assert "shards/1 and shards/2 are not shards of one run" in joined.err
    named = "the file checks/holds.sh of suite" if change.startswith("checks") else "the folder start of suite"
    assert f"{named} differs between them" in joined.err
    assert not (project / "joined").exists()


@honest("resume", "shards of different scripts and folders")
def test_shards_of_one_run_are_joined_and_resumed(project: Path) -> None:
    for number in (1, 2):
        assert run(project, "--shard", f"{number}/2", "--output", f"shards/{number}").code == 0
    assert keystone("merge", "shards", "--output", "joined", directory=project).code == 0
    resumed = run(project, "--resume", "joined")
    assert (resumed.code, "3 of them finished before" in resumed.err) == (0, True), resumed.err
    (project / "prompt.md").write_text("Don't.")
    assert run(project, "--resume", "joined").code == 2


WITH_HELPER = """\
version: 1
id: helped
task: {prompt: x}
agent: {type: none}
parallelism: {replicas: 2, max_concurrency: 1}
invariants: {holds: {check: {type: custom, script: checks/holds.py}}}
"""
HOLDS = "import json, tables\nprint(json.dumps({'passed': tables.GOOD}))\n"


@functools.cache
def finished_with_helper(in_repository: bool) -> Path:
    """Made once a process: a run doesn't depend on where its checkout is."""
    files = {
        "keystone.yaml": WITH_HELPER,
        "checks/holds.py": HOLDS,
        "checks/tables.py": "GOOD = True\n",
        ".gitignore": "out/\n*.log\n",
    }
    top = make_checkout(files, in_repository=in_repository)
    (top / "checks" / "tables.py").write_text("GOOD = 1 == 1\n")
    first = run(top, "--output", "out", "--summary", "checks/summary.md")
    assert first.code == 0, first.err
    return top


@pytest.fixture(params=[True, False], ids=["repository", "no repository"])
def helped(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A finished run whose script on the host imports a module beside it, which is not as the commit has it."""
    shutil.copytree(finished_with_helper(request.param), tmp_path, symlinks=True, dirs_exist_ok=True)
    return tmp_path


@hostile("resume", "verdicts of a script whose helper was edited, uncommitted", held_by="the run's identity")
@pytest.mark.parametrize("content", ["GOOD = False\n", "GOOD = True\n"], ids=["edited", "as committed"])
def test_another_helper_of_a_host_script_is_another_run(helped: Path, content: str) -> None:
    (helped / "checks" / "tables.py").write_text(content)
    resumed = run(helped, "--resume", "out", "--summary", "checks/summary.md")
    assert resumed.code == 2, resumed.err
    said = "the file checks/tables.py, which host scripts of helped can read, has changed since"
    assert f"this is not the run that is to be resumed: {said}" in resumed.err


@honest("resume", "verdicts of a script whose helper was edited, uncommitted")
def test_what_no_host_script_depends_on_is_no_other_run(helped: Path) -> None:
    """Results, a copy of the summary, compiled modules, and what lies elsewhere or is ignored by git."""
    (helped / "build").mkdir()
    (helped / "build" / "notes.txt").write_text("mine")
    (helped / "build.log").write_text("mine")
    (helped / "checks" / "__pycache__").mkdir(exist_ok=True)
    (helped / "checks" / "__pycache__" / "tables.pyc").write_text("")
    resumed = run(helped, "--resume", "out", "--summary", "checks/summary.md")
    assert (resumed.code, "2 of them finished before" in resumed.err) == (0, True), resumed.err


@hostile("resume", "shards of scripts with different helpers, uncommitted", held_by="the run's identity")
@pytest.mark.parametrize("helped", [True], ids=["repository"], indirect=True)
def test_shards_with_another_helper_are_not_joined(helped: Path) -> None:
    assert run(helped, "--shard", "1/2", "--output", "out/1").code == 0
    (helped / "checks" / "tables.py").write_text("GOOD = 2 == 2\n")
    assert run(helped, "--shard", "2/2", "--output", "out/2").code == 0
    joined = keystone("merge", "out/1", "out/2", "--output", "joined", directory=helped)
    assert joined.code == 3, joined.err
    assert "the file checks/tables.py, which host scripts of helped can read, differs between them" in joined.err


@honest("resume", "shards of scripts with different helpers, uncommitted")
@pytest.mark.parametrize("helped", [False], ids=["no repository"], indirect=True)
def test_shards_with_one_helper_are_joined(helped: Path) -> None:
    for number in (1, 2):
        assert run(helped, "--shard", f"{number}/2", "--output", f"out/{number}").code == 0
    joined = keystone("merge", "out/1", "out/2", "--output", "joined", directory=helped)
    assert joined.code == 0, joined.err
