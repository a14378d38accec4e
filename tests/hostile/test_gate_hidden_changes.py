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


def weights(weight: str, z: str, pattern: str) -> str:
    """Thirty checks of this weight, one with a weight and one with a pattern of its own."""
    look = "check: {type: file_content, path: a, pattern: x}"
    many = "".join(f"  c{n:02}: {{weight: {weight}, {look}}}\n" for n in range(30))
    last = f"  y: {{{look.replace('pattern: x', f'pattern: {pattern}')}}}\n  z: {{weight: {z}, {look}}}\n"
    return SPEC.replace("MORE", many + last)


@hostile(FAMILY, f"{CROWD}, by weights", held_by="what can weaken most stands first", sandbox="none")
def test_no_crowd_of_weights_hides_one_that_goes_or_a_weaker_pattern(tmp_path: Path) -> None:
    base = {"keystone.yaml": weights("1", "1", "'^done$'"), "check.sh": SCRIPT}
    job = judged(tmp_path, base, {"keystone.yaml": weights("1.0001", "0", "'.*'")})
    line = next(line for line in run(job).summary.splitlines() if line.startswith("> - `keystone.yaml`"))
    assert line.startswith("> - `keystone.yaml`: weight of z 1 → 0; y: check.pattern `^done$` → ")


@hostile(FAMILY, f"{CROWD}, by files", held_by="what lost most stands first", sandbox="none")
def test_no_crowd_of_files_hides_one_that_was_emptied(tmp_path: Path) -> None:
    scripts = "".join(f"  c{n:02}: {{check: {{type: custom, script: s{n:02}.sh}}}}\n" for n in range(30))
    base = {"keystone.yaml": SPEC.replace("MORE", scripts), "check.sh": SCRIPT}
    base |= {f"s{n:02}.sh": SCRIPT for n in range(30)}
    longer = {f"s{n:02}.sh": f"{SCRIPT}# more\n" for n in range(29)}
    job = judged(tmp_path, base, {**longer, "s29.sh": "\n"})
    assert "`keystone.yaml`: changed files: s29.sh (+1 −3, now empty), s00.sh (+1 −0), " in run(job).summary


TYPES = "changes what a check asks so that it looks the same"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "{type: file_content, path: a, not_contains: ERROR}",
            "{type: file_content, path: a, not_contains: ROOTERROR}",
        ),
        ("{type: json, path: a, values: {done: true}}", "{type: json, path: a, values: {done: 1}}"),
    ],
)
@hostile(FAMILY, TYPES, held_by="values are compared one by one, with their types", sandbox="none")
def test_a_change_of_meaning_is_never_one_of_the_text_alone(tmp_path: Path, before: str, after: str) -> None:
    base = {"keystone.yaml": SPEC.replace("MORE", f"  z: {{check: {before}}}"), "check.sh": SCRIPT}
    job = judged(tmp_path, base, {"x": "y"})
    after = after.replace("ROOT", str(job.workspace))
    (job.workspace / "keystone.yaml").write_text(SPEC.replace("MORE", f"  z: {{check: {after}}}"))
    git(job.workspace, "commit", "-q", "-a", "-m", "another meaning")
    summary = run(job).summary
    assert "`keystone.yaml`: z: check." in summary
    assert "only its text changed" not in summary


@honest(FAMILY, TYPES, sandbox="none")
def test_another_spelling_of_the_same_is_one_of_the_text_alone(tmp_path: Path) -> None:
    before = "  z: {check: {type: json, path: a, values: {done: true, n: 1}}}"
    after = "  z:  # the same\n    check: {path: a, type: json, values: {n: 1, done: true}}"
    base = {"keystone.yaml": SPEC.replace("MORE", before), "check.sh": SCRIPT}
    job = judged(tmp_path, base, {"keystone.yaml": SPEC.replace("MORE", after)})
    assert "`keystone.yaml`: only its text changed, not what it means\n" in run(job).summary


SECRET = "changes the script that makes a secret"


@hostile(FAMILY, SECRET, held_by="what a secret is made by is among the files that are compared", sandbox="none")
def test_a_script_that_makes_a_secret_is_seen(tmp_path: Path) -> None:
    spec = SPEC.replace("MORE", "secrets: [{name: TOKEN, source: 'command:sh get.sh'}]\n")
    base = {"keystone.yaml": spec, "check.sh": SCRIPT, "get.sh": "echo token-of-the-team\n"}
    job = judged(tmp_path, base, {"get.sh": "echo token-of-others\n"})
    assert "`keystone.yaml`: changed files: get.sh (+1 −1)\n" in run(job).summary


@honest(FAMILY, SECRET, sandbox="none")
def test_a_script_beside_it_is_nothing(tmp_path: Path) -> None:
    spec = SPEC.replace("MORE", "secrets: [{name: TOKEN, source: 'command:sh get.sh'}]\n")
    base = {"keystone.yaml": spec, "check.sh": SCRIPT, "get.sh": "echo token-of-the-team\n", "set.sh": "x"}
    job = judged(tmp_path, base, {"set.sh": "y"})
    assert "alters its own gate" not in run(job).summary


@honest(FAMILY, CROWD, f"{CROWD}, spec by spec", f"{CROWD}, by weights", f"{CROWD}, by files", sandbox="none")
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
