"""Files and rules that evidence comes from: what a change did to recordings above all, and whose of them count."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.repositories import make_change

from keystone_action.errors import UsageError
from keystone_action.gate import base_commit
from keystone_action.gate.base_commit import BaseCommit
from keystone_action.gate.change_base import NO_BASE, ChangeBase
from keystone_action.gate.compare import gated_specs
from keystone_action.invariants.registry import CheckTypes
from keystone_action.options.model import Options
from keystone_action.runner.journal.identification import run_facts
from keystone_action.runner.journal.identity import explain_differences, identity_differences
from keystone_action.runner.preflight import GatedSpecs
from keystone_action.runs import specs_to_run
from keystone_action.spec.loading.loader import load

SPEC = """
version: 1
id: small
task: {prompt: "do it"}
agent: {type: command, command: "true"}
invariants:
  x: {check: {type: file_exists, path: a}}
"""
BASE: dict[str, str] = {
    "evals/keystone.yaml": SPEC,
    "evals/recordings/small/small.r0.jsonl": '{"a": 1}\n',
    "evals/recordings/small/small.r1.jsonl": '{"a": 1}\n',
    "evals/recordings/other/other.r0.jsonl": "{}\n",
    "elsewhere/small.r0.jsonl": '{"a": 1}\n',
}
R0, R1, R2 = (f"small.r{number}.jsonl" for number in range(3))
FOLDER = "evals/recordings/small"


def compared(tmp_path: Path, change: dict[str, str | None], base: dict[str, str] = BASE, **more: str) -> GatedSpecs:
    made = make_change(tmp_path, base, change)
    (tmp_path / "work").mkdir()
    checkout = made.check_out(tmp_path / "work")
    commit = BaseCommit(made.base, "main")
    return gated_specs(Options.of(specs=("evals",), directory=checkout, **more), ChangeBase(commit))


def sentences(found: GatedSpecs) -> list[str]:
    assert found.changes is not None
    return [text for one in found.changes.specs for text in one.differences]


@pytest.mark.parametrize(
    ("change", "names", "said"),
    [
        pytest.param({"README": "x", "evals/recordings/other/other.r0.jsonl": "!"}, set(), [], id="none of it"),
        pytest.param({f"{FOLDER}/{R0}": '{"a": 2}\n'}, {R0}, [f"changed files: {FOLDER}/{R0} (+1 −1)"], id="edited"),
        pytest.param({f"{FOLDER}/{R2}": "{}\n"}, {R2}, [f"changed files: {FOLDER}/{R2} (added)"], id="added"),
        pytest.param({f"{FOLDER}/{R1}": None}, {R1}, [f"changed files: {FOLDER}/{R1} (deleted)"], id="deleted"),
        pytest.param({f"{FOLDER}/{R0}": '{"a": 1}\r\n'}, {R0}, [f"changed files: {FOLDER}/{R0} (+1 −1)"], id="CRLF"),
        pytest.param(
            {"evals/keystone.yaml": f"{SPEC}gateway: {{recordings: recordings/other}}\n"},
            {R0, R1, "other.r0.jsonl"},
            None,
            id="another folder",
        ),
    ],
)
def test_of_a_spec(tmp_path: Path, change: dict[str, str | None], names: set[str], said: list[str] | None) -> None:
    found = compared(tmp_path, change)
    assert found.specs[0].changed_recordings == names
    if said is None:
        assert "gateway.recordings none → recordings/other" in sentences(found)
    else:
        assert sentences(found) == said


def test_a_spec_that_moved_takes_its_recordings_along(tmp_path: Path) -> None:
    moved = {name: None for name in BASE if name.startswith("evals/")}
    there = {name.replace("evals/", "evals/more/"): text for name, text in BASE.items() if name.startswith("evals/")}
    found = compared(tmp_path, {**moved, **there})
    assert found.specs[0].changed_recordings == frozenset()


@pytest.mark.parametrize("before", ["none", "broken"])
def test_of_a_spec_that_the_base_does_not_have_all_are_new(tmp_path: Path, before: str) -> None:
    base = dict(BASE)
    if before == "none":
        base["evals/keystone.yaml"] = SPEC.replace("id: small", "id: former")
        change: dict[str, str | None] = {"evals/keystone.yaml": None, "evals/new.keystone.yaml": SPEC}
    else:
        base["evals/keystone.yaml"] = "version: 1\n"
        change = {"evals/keystone.yaml": SPEC}
    assert compared(tmp_path, change, base).specs[0].changed_recordings == {R0, R1}


def test_with_spec_from_base_those_of_the_base_are_read(tmp_path: Path) -> None:
    found = compared(tmp_path, {f"{FOLDER}/{R0}": '{"a": 2}\n', f"{FOLDER}/{R2}": "{}\n"}, spec_from="base")
    (one,) = found.specs
    assert one.changed_recordings == frozenset()
    folder = one.directory / one.recordings
    assert {file.name: file.read_text() for file in folder.iterdir()} == dict.fromkeys([R0, R1], '{"a": 1}\n')
    assert sentences(found) == [f"changed files: {FOLDER}/{R0} (+1 −1), {FOLDER}/{R2} (added)"]


def test_of_a_large_repository_they_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_commit, "WHOLE_FILES", 0)
    assert compared(tmp_path, {f"{FOLDER}/{R0}": "{}\n"}).specs[0].changed_recordings == {R0}


def test_of_a_large_repository_a_folder_that_is_named_is_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_commit, "WHOLE_FILES", 0)
    base = {**BASE, "evals/keystone.yaml": f"{SPEC}gateway: {{recordings: kept}}\n", "evals/kept/a.jsonl": "{}\n"}
    assert compared(tmp_path, {"README": "x"}, base).specs[0].changed_recordings == frozenset()


def test_a_folder_in_the_place_of_a_recording_is_a_change(tmp_path: Path) -> None:
    found = compared(tmp_path, {f"{FOLDER}/{R0}": None, f"{FOLDER}/{R0}/x": "y"})
    assert found.specs[0].changed_recordings == {R0, f"{R0}/x"}


def test_files_that_agent_and_checks_find_programs_in_are_compared(tmp_path: Path) -> None:
    """Those that the base commit has: what is installed there besides is in no commit."""
    base = {**BASE, "evals/keystone.yaml": f"{SPEC}resources: {{readable: [tools]}}\n", "evals/tools/lint": "exit 1\n"}
    found = compared(tmp_path, {"evals/tools/lint": "exit 0\n", "evals/tools/more": "x"}, base)
    assert sentences(found) == [
        "changed files in resources.readable, always the checkout's own: evals/tools/lint (+1 −1)"
    ]


SECTIONS = {
    "gateway": "{match: turn, budget: {max_requests: 5}}",
    "forbidden": "{tools: [fetch], commands: [curl]}",
    "audit": "{http_calls: true}",
    "agent": "{type: command, command: 'true', trace: {format: claude, stdout: true}}",
    "resources": "{readable: [/usr/share/doc]}",
}


@pytest.mark.parametrize("name", SECTIONS)
def test_with_spec_from_base_the_rules_on_evidence_are_those_of_the_base(tmp_path: Path, name: str) -> None:
    weak = SPEC
    strong = "\n".join(line for line in SPEC.splitlines() if not line.startswith(f"{name}:"))
    strong += f"\n{name}: {SECTIONS[name]}\n"
    found = compared(tmp_path, {"evals/keystone.yaml": weak}, {**BASE, "evals/keystone.yaml": strong}, spec_from="base")
    (one,) = found.specs
    (tmp_path / "strong.yaml").write_text(strong)
    assert getattr(one.spec, name) == getattr(load(tmp_path / "strong.yaml", CheckTypes()).spec, name)
    assert any(f"{name}." in text for text in sentences(found))


@pytest.mark.parametrize("name", SECTIONS)
def test_they_are_part_of_what_a_run_is(tmp_path: Path, name: str) -> None:
    identities = []
    for text in (SPEC, "\n".join(line for line in SPEC.splitlines() if not line.startswith(f"{name}:"))):
        more = "" if text == SPEC else f"\n{name}: {SECTIONS[name]}\n"
        (tmp_path / "keystone.yaml").write_text(text + more)
        options = Options.of(specs=("keystone.yaml",), directory=tmp_path)
        identities.append(run_facts(options, specs_to_run(options, NO_BASE).specs, None))
    (found,) = identity_differences(*identities, "resume")
    assert explain_differences([found], "resume") == "the spec small has changed since"


def test_without_a_base_nothing_is_known_to_be_changed(tmp_path: Path) -> None:
    (tmp_path / "keystone.yaml").write_text(SPEC)
    options = Options.of(specs=("keystone.yaml",), directory=tmp_path)
    assert specs_to_run(options, NO_BASE).specs[0].changed_recordings == frozenset()
    with pytest.raises(UsageError):
        gated_specs(Options.of(specs=("keystone.yaml",), directory=tmp_path, spec_from="base"), NO_BASE)


SECRETS = """
secrets:
  - {name: TOKEN, source: "file:secrets/token.txt"}
  - {name: OTHER, source: "command:sh tools/get.sh | tr -d x"}
  - {name: THIRD, source: "command:python3 -c 'print(1)' && ./tools/third"}
"""
OF_SECRETS: dict[str, str] = {
    "evals/keystone.yaml": SPEC + SECRETS,
    "evals/secrets/token.txt": "one\n",
    "evals/tools/get.sh": "echo one\n",
    "evals/tools/third": "#!/bin/sh\necho one\n",
    "evals/tools/other.sh": "echo one\n",
}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("secrets/token.txt", "(+1 −1)"),
        ("tools/get.sh", "(+1 −1)"),
        ("tools/third", "(+1 −2)"),
        ("tools/other.sh", ""),
    ],
)
def test_what_a_secret_is_read_from_or_made_by_is_a_file_that_the_spec_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str, large: bool
) -> None:
    if large:
        monkeypatch.setattr(base_commit, "WHOLE_FILES", 0)
    found = compared(tmp_path, {f"evals/{name}": "echo two\n"}, OF_SECRETS)
    assert sentences(found) == ([f"changed files: evals/{name} {what}"] if what else [])


def test_a_file_of_a_secret_that_goes_or_comes_is_told(tmp_path: Path) -> None:
    found = compared(tmp_path, {"evals/secrets/token.txt": None}, OF_SECRETS)
    assert sentences(found) == ["changed files: evals/secrets/token.txt (deleted)"]


def test_a_word_that_is_no_path_hides_no_other_difference(tmp_path: Path) -> None:
    spec = OF_SECRETS["evals/keystone.yaml"].replace("| tr -d x", f"| tr -d {'a' * 300}")
    found = sentences(compared(tmp_path, {"evals/keystone.yaml": spec, "evals/tools/get.sh": "echo two\n"}, OF_SECRETS))
    assert any("evals/tools/get.sh" in one for one in found)
    assert not any("can't be compared" in one for one in found)


def test_files_of_secrets_that_are_not_of_the_repository_are_none_of_its_files(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("secret\n")
    spec = f"{SPEC}secrets: [{{name: A, source: 'file:{outside}'}}, {{name: B, source: 'file:~/token'}}]\n"
    assert sentences(compared(tmp_path, {"README": "x"}, {"evals/keystone.yaml": spec})) == []


def test_of_a_base_that_can_not_be_read_it_is_not_known_what_changed(tmp_path: Path) -> None:
    made = make_change(tmp_path, BASE, {"README": "x"})
    (tmp_path / "work").mkdir()
    checkout = made.check_out(tmp_path / "work")

    def opened(commit: BaseCommit | None = None, problem: str = "") -> GatedSpecs:
        return gated_specs(Options.of(specs=("evals",), directory=checkout), ChangeBase(commit, problem))

    (one,) = opened(BaseCommit("9" * 40, "main")).specs
    assert "main, commit 999999999999, can't be read" in one.recordings_uncompared
    (one,) = opened(problem="the event does not name it").specs
    assert one.recordings_uncompared == "the event does not name it"
    (one,) = opened(BaseCommit(made.base, "main", incomplete="only this push was compared")).specs
    assert one.recordings_uncompared == "only this push was compared"
    for known in (opened(BaseCommit(made.base, "main")), opened()):
        assert known.specs[0].recordings_uncompared == ""
