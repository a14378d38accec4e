"""What newcomers are told who call `keystone` with a mistake: what is wrong, where, what to do; and nothing is written.

docs/command-line.md shows these in a table ("Mistakes").
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.command_line import keystone, spec

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
MISTAKES = [
    ("", "usage: keystone COMMAND [options]"),
    ("rnu", "there is no command 'rnu'; did you mean `keystone run`?"),
    (
        "evals/keystone.yaml",
        "there is no command 'evals/keystone.yaml'; did you mean `keystone run evals/keystone.yaml`?",
    ),
    ("version", "there is no command 'version'; did you mean `keystone --version`?"),
    ("run typo", "did you mean typo.yaml?"),
    ("completion", "the following arguments are required: SHELL"),
    ("explain budget", "a spec has no field 'budget'"),
    ("run --quite", "keystone run has no option --quite; did you mean --quiet?"),
    ("validate --threshold 1", "keystone validate has no option --threshold: it is an option of `keystone run`"),
    ("run --threshold 85", "argument --threshold: '85' is not a number from 0 to 1"),
    ("run evals --filter smal", "nothing matches --filter smal; did you mean `small`?"),
    (
        "run evals --param modle=a",
        "no spec uses a parameter of that name; used are model; did you mean model?",
    ),
    ("run evals/keystone.yml", "did you mean evals/keystone.yaml?"),
    ("run missing/keystone.yaml", "there is no directory"),
    ("run notes", "no spec found in notes"),
    ("run other.yaml", "this is not a Keystone spec: it has none of version, id, task, agent, invariants"),
    ("run empty.yaml", "the file is empty; `keystone init` writes a first spec"),
    ("run notes/todo.txt", "a spec, found 'buy milk', expected a mapping with version, id, task, …"),
    ("run typo.yaml", "unknown key 'agnet', expected one of"),
    ("run level.yaml", "unknown key 'timeout', expected one of"),
    ("report notes", "results.json can't be read: No such file or directory"),
    ("report evals/keystone.yaml", "is not a JSON document"),
    ("run evals --failed notes", "there is no results file"),
    ("run evals --resume notes", "journal.jsonl can't be read: No such file or directory"),
    ("run evals --baseline notes", "there is no baseline"),
    ("compare notes notes", "there is no baseline"),
    ("merge notes", "there are no results in"),
    ("init evals", "is already there"),
    ("init notes/todo.txt", "is a file"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as newcomers have it."""
    directory = tmp_path_factory.mktemp("home") / "project"
    small = spec("{type: command, command: 'echo {{ params.model }}'}", parallelism="{matrix: {model: [a, b]}}")
    for name, text in {
        "evals/keystone.yaml": small,
        "other.yaml": "prompts: [hello]\nproviders: [a]\ntests: []\n",
        "empty.yaml": "",
        "notes/todo.txt": "buy milk",
        "typo.yaml": small.replace("agent:", "agnet:"),
        "level.yaml": f"{small}timeout: 5m\n",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, "utf-8")
    return directory


@pytest.mark.parametrize(("words", "said"), MISTAKES, ids=[words or "nothing" for words, _ in MISTAKES])
def test_a_mistake_is_told_and_nothing_is_written(place: Path, words: str, said: str) -> None:
    before = sorted(place.rglob("*"))
    called = keystone(*words.split(), directory=place)
    assert (called.code, called.out) == (2, ""), called.err
    assert said in called.err
    assert not called.has_traceback
    assert "did you mean" not in called.err.replace(said, "") or "did you mean" in said or "agnet" in said
    assert sorted(place.rglob("*")) == before


def test_each_is_in_the_documentation() -> None:
    """As a call and what it is told, in one row; the words of the folder of this test stand for anybody's."""
    rows = dict(re.findall(r"^\| `keystone ?([^`]*)` \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE))
    missing = [words for words, said in MISTAKES if said.replace("`", "") not in rows.get(words, "").replace("`", "")]
    assert missing == []


def test_the_key_of_another_level_and_the_misspelt_one_are_told_apart(place: Path) -> None:
    told = keystone("validate", "typo.yaml", "level.yaml", directory=place).err
    assert "did you mean 'agent'?" in told
    assert "`timeout` belongs under `agent` or under `resources`" in told


def test_a_file_of_something_else_is_one_error(place: Path) -> None:
    called = keystone("validate", "other.yaml", directory=place)
    assert "1 error in 1 spec" in called.err
    assert "found the keys prompts, providers, tests" in called.err


def test_in_the_wrong_folder_the_spec_above_is_named(place: Path) -> None:
    (place / "evals" / "deep" / "deeper").mkdir(parents=True)
    called = keystone("run", directory=place / "evals" / "deep" / "deeper")
    assert called.code == 2
    assert "did you mean ../../keystone.yaml?" in called.err
    (place / "evals" / "deep" / "deeper").rmdir()
    (place / "evals" / "deep").rmdir()


def test_two_specs_with_one_id_are_told_before_they_run(place: Path) -> None:
    """As a warning: two files that are never in one run may have one id."""
    both = ["evals/keystone.yaml", "twin.yaml"]
    (place / "twin.yaml").write_text((place / "evals/keystone.yaml").read_text("utf-8"), "utf-8")
    told = keystone("validate", *both, directory=place)
    again = keystone("validate", both[0], both[0], directory=place)
    run = keystone("run", *both, directory=place)
    (place / "twin.yaml").unlink()
    assert (told.code, told.out.count("valid")) == (0, 2)
    assert "warning: evals/keystone.yaml and twin.yaml have the same id, small: one run can't have both" in told.err
    assert (again.code, again.err) == (0, "")
    assert run.code == 2
    assert "two specs have the id 'small'" in run.err


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    """By root too, who reads what is closed to others: a link that leads to itself."""
    (tmp_path / "keystone.yaml").symlink_to("keystone.yaml")
    called = keystone("run", "keystone.yaml", directory=tmp_path)
    assert (called.code, called.out) == (2, "")
    assert "keystone.yaml:1:1: " in called.err
    assert not called.has_traceback
