"""A pull request that weakens its own gate, and hides it: in line ends, in a crowd of changes, behind a link."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.command_line import keystone
from support.fake_runner import EVENTS, FakeRunner, StepResult
from support.repositories import commit, git, make_change

FAMILY = "pull request"
SPEC = """
version: 1
id: small
task: {prompt: "do it"}
agent: {type: command, command: "touch a"}
invariants:
  decides: {check: {type: custom, script: check.sh}}
MORE"""
SCRIPT = "set -e\ntest -f a\necho '{\"passed\": true}'\n"
LINE_ENDS = "commits a check script with CRLF, which switches its set -e off"
CROWD = "hides a weaker check in a crowd of other changes"
LINK = "commits a link as the folder of results"


def run(job: FakeRunner, **inputs: str) -> StepResult:
    given = {"spec": "keystone.yaml", "comment": "never", "status-context": "", **inputs}
    return job.step(given, env={"DOCKER_HOST": "unix:///nonexistent/docker.sock"})


def judged(tmp_path: Path, base: dict[str, str], head: dict[str, str], crlf: bool = False) -> FakeRunner:
    """A job on the change from one to the other, checked out as a runner does it. crlf: what the commit holds, whatever
    attributes would make of it."""
    made = make_change(tmp_path / "origin", base, head)
    event: dict[str, Any] = json.loads((EVENTS / "pull_request.json").read_text())
    event["pull_request"]["base"]["sha"] = made.base
    job = FakeRunner(tmp_path / "job", event="pull_request", payload=event)
    made.check_out(job.workspace)
    if crlf:
        (job.workspace / "check.sh").write_bytes(SCRIPT.replace("\n", "\r\n").encode())
        blob = git(job.workspace, "hash-object", "-w", "--no-filters", "check.sh")
        git(job.workspace, "update-index", "--cacheinfo", f"100644,{blob},check.sh")
        git(job.workspace, "commit", "-q", "-m", "line ends")
    return job


@pytest.mark.parametrize(
    "attributes", ["*.bat text eol=crlf\n", "* text=auto\n", "# crlf\n", "*.sh text eol=lf\n", "other crlf\n"]
)
@hostile(FAMILY, LINE_ENDS, held_by="files are compared as a checkout of the base has them", sandbox="none")
def test_line_ends_that_weaken_a_script_are_seen_whatever_the_attributes_of_the_base(
    tmp_path: Path, attributes: str
) -> None:
    base = {"keystone.yaml": SPEC.replace("MORE", ""), "check.sh": SCRIPT, ".gitattributes": attributes}
    job = judged(tmp_path, base, {"x": "y"}, crlf=True)
    assert b"\r\n" in (job.workspace / "check.sh").read_bytes()
    assert "`keystone.yaml`: changed files: check.sh (+3 −3)" in run(job).summary


@pytest.mark.parametrize("attributes", ["*.sh text eol=crlf\n", "* text eol=crlf\n", "*.sh crlf\n*.sh eol=crlf\n"])
@honest(FAMILY, LINE_ENDS, sandbox="none")
def test_line_ends_that_the_base_asks_for_are_no_change(tmp_path: Path, attributes: str) -> None:
    base = {"keystone.yaml": SPEC.replace("MORE", ""), "check.sh": SCRIPT, ".gitattributes": attributes}
    job = judged(tmp_path, base, {"x": "y"})
    assert b"\r\n" in (job.workspace / "check.sh").read_bytes()
    assert "alters its own gate" not in run(job).summary


def crowd(changed: str) -> dict[str, str]:
    """A spec with many checks of files, folders of expected files and words; changed: a mark in all of them."""
    checks = "".join(
        f"  look_{number}:\n    description: {changed} {'w' * 40}\n    check: {{type: files, expect_dir: expected}}\n"
        for number in range(60)
    )
    expected = {f"expected/{number:03}.txt": f"{changed}\n" for number in range(60)}
    return {"keystone.yaml": SPEC.replace("MORE", checks), **expected, "check.sh": SCRIPT}


@hostile(FAMILY, CROWD, held_by="what can weaken stands before what can't", sandbox="none")
def test_no_crowd_of_changes_hides_a_weaker_script(tmp_path: Path) -> None:
    job = judged(tmp_path, crowd("one"), {**crowd("two"), "check.sh": SCRIPT.replace("test -f a\n", "")})
    line = next(line for line in run(job).summary.splitlines() if "changed files: " in line)
    assert line.startswith("> - `keystone.yaml`: changed files: check.sh (+0 −1), expected/")


@hostile(FAMILY, f"{CROWD}, spec by spec", held_by="what can weaken stands before what can't", sandbox="none")
def test_no_crowd_of_specs_hides_the_weaker_one(tmp_path: Path) -> None:
    def specs(words: str, threshold: str) -> dict[str, str]:
        text = SPEC.replace("MORE", f"description: {words}\n").replace("{type: custom, script: check.sh}", "LAST")
        last = "{type: file_exists, path: a}"
        many = {f"a{number:02}.keystone.yaml": text.replace("small", f"a{number}") for number in range(60)}
        found = {**many, "z.keystone.yaml": f"{text}scoring: {{pass_threshold: {threshold}}}\n"}
        return {name: content.replace("LAST", last) for name, content in found.items()}

    job = judged(tmp_path, specs("one", "0.9"), specs("two", "0.1"))
    summary = run(job, spec="*.keystone.yaml").summary
    first = next(line for line in summary.splitlines() if line.startswith("> - "))
    assert first.startswith("> - `z.keystone.yaml`: threshold 0.9 → 0.1; ")


@honest(FAMILY, CROWD, f"{CROWD}, spec by spec", sandbox="none")
def test_a_crowd_that_weakens_nothing_is_told_in_its_order(tmp_path: Path) -> None:
    job = judged(tmp_path, crowd("one"), {**crowd("one"), "expected/000.txt": "two\n"})
    assert "`keystone.yaml`: changed files: expected/000.txt (+1 −1)\n" in run(job).summary


@pytest.mark.parametrize(("link", "output"), [("keystone-results", ""), ("out", "out/results"), ("a/b", "a/b/../c")])
@hostile(FAMILY, LINK, held_by="no part of output-dir may be a link", sandbox="none")
def test_results_are_not_written_where_a_committed_link_leads(tmp_path: Path, link: str, output: str) -> None:
    base = {"keystone.yaml": SPEC.replace("MORE", ""), "check.sh": SCRIPT, "src/kept": "x", "a/x": "x"}
    job = judged(tmp_path, base, {"x": "y"})
    (job.workspace / link).symlink_to(job.workspace / "src")
    git(job.workspace, "add", "-A")
    git(job.workspace, "commit", "-q", "-m", "a link")
    done = run(job, **({"output-dir": output} if output else {}))
    assert done.exit_code == 2, done.text
    assert "a folder that no link leads to" in done.text
    assert [path.name for path in (job.workspace / "src").iterdir()] == ["kept"]


@honest(FAMILY, LINK, sandbox="none")
def test_results_are_written_into_a_folder_that_is_there(tmp_path: Path) -> None:
    base = {"keystone.yaml": SPEC.replace("MORE", ""), "check.sh": SCRIPT, "out/.gitkeep": ""}
    done = run(judged(tmp_path, base, {"x": "y"}), **{"output-dir": "out/results"})
    assert done.exit_code == 0, done.text


@pytest.mark.parametrize("words", [(), ("--output", "kept/new")])
@hostile(FAMILY, f"{LINK}, for whoever runs it on a laptop", held_by="no link of a commit is followed", sandbox="none")
def test_on_a_laptop_results_are_not_written_where_a_committed_link_leads(tmp_path: Path, words: tuple[str]) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".keystone").symlink_to("elsewhere")
    (tmp_path / "kept").symlink_to("elsewhere")
    commit(tmp_path, {"keystone.yaml": SPEC.replace("MORE", ""), "check.sh": SCRIPT})
    done = keystone("run", "keystone.yaml", *words, directory=tmp_path)
    assert done.code == 2, done.out + done.err
    assert "is a link in the repository" in done.err
    assert list((tmp_path / "elsewhere").iterdir()) == []


@honest(FAMILY, f"{LINK}, for whoever runs it on a laptop", sandbox="none")
def test_on_a_laptop_a_link_of_its_user_is_followed(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path, {"keystone.yaml": SPEC.replace("MORE", ""), "check.sh": SCRIPT})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "kept").symlink_to("elsewhere")
    done = keystone("run", "keystone.yaml", "--output", "kept/new", directory=tmp_path)
    assert done.code == 0, done.out + done.err
    assert (tmp_path / "elsewhere/new/results.json").exists()
