"""The how-to guides and the page on scoring, each followed from an empty home, with the examples of a checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.command_line import NO_ENGINE, ROOT
from support.guides import Block, Reader, blocks, fits

from keystone_action.report.words import duration

pytestmark = pytest.mark.sandbox

DOCS = ROOT / "docs"
GUIDES = sorted(path.relative_to(DOCS).as_posix() for path in [*DOCS.glob("how-to/*.md"), DOCS / "scoring.md"])


@pytest.mark.parametrize("name", GUIDES)
@pytest.mark.slow
def test_a_guide_does_what_it_says(tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    shutil.copytree(ROOT / "examples", home / "examples", ignore=shutil.ignore_patterns(".keystone", "__pycache__"))
    Reader(home, environ=NO_ENGINE).follow(DOCS / name)


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_is_short_and_has_something_to_run(name: str) -> None:
    text = (DOCS / name).read_text("utf-8")
    assert "sh" in {block.language for block in blocks(text)}
    assert len(text.splitlines()) <= 130 or not name.startswith("how-to/")


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("It fails:\n```sh\nfalse\n```\n", "exit code 1, expected 0"),
        ("It passes:\n```sh\ntrue # exit code 3\n```\n", "exit code 0, expected 3"),
        ("It says:\n```sh\necho a; echo b\n```\n\nPrinted is:\n```text\na\nc\n```\n", "--- found\na\nb"),
        ("The file `a.txt`:\n```text\none\n```\n\nFrom `a.txt`:\n```text\ntwo\n```\n", "not in a.txt"),
    ],
)
def test_what_is_not_as_a_page_says_is_found(tmp_path: Path, page: str, said: str) -> None:
    (tmp_path / "page.md").write_text(page)
    (tmp_path / "home").mkdir()
    with pytest.raises(AssertionError) as error:
        Reader(tmp_path / "home").follow(tmp_path / "page.md")
    assert said in str(error.value)


@pytest.mark.parametrize("page", ["It is:\n```\ntrue\n```\n", "It is:\n```yaml\na: 1\n```\n"])
def test_a_block_that_nobody_can_place_is_refused(tmp_path: Path, page: str) -> None:
    (tmp_path / "page.md").write_text(page)
    (tmp_path / "home").mkdir()
    with pytest.raises(ValueError, match="block"):
        Reader(tmp_path / "home").follow(tmp_path / "page.md")


def test_a_terminal_keeps_its_folder_and_its_variables(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    reader = Reader(tmp_path / "home", environ={"GIVEN": "yes"})
    for line in (
        "mkdir a && cd a",
        "export NEW=more",
        "read -p 'Name? ' name; echo \"$name $NEW $GIVEN\" # answer: me",
    ):
        reader.type(line)
    assert reader.printed == "Name? me\nme more yes\n"
    reader.type("pwd; test -t 1")
    assert reader.printed == "/home/ada/a\n"


def test_times_and_names_of_runs_may_differ() -> None:
    assert fits("a 1.2 s in 20261123-101112-abc123\n…\nend", "a 12 s in 20250101-000000-000000\nb\nc\nend\n")
    assert all(fits("after 0.01 s.", f"after {duration(seconds)}.") for seconds in (0.0004, 0.1, 8.0, 42.0, 60.0, 61.0))
    assert not fits("a 1.2 s", "a 1.2 t")
    assert not fits("a\n…", "b\na\n")


def test_a_block_is_a_file_only_where_a_path_is_named() -> None:
    def file(caption: str) -> str | None:
        return Block(caption, "yaml", "", slice(0, 0)).file

    assert file("The spec, `evals/keystone.yaml`:") == "evals/keystone.yaml"
    assert file("From `keystone.yaml`, the gate:") == "keystone.yaml"
    assert file("Run `keystone init`:") is None
