"""`extends`: mappings merge, lists and scalars replace, and errors point into the file that they are in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.check_types import TYPES

from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.loader import load
from keystone_action.spec.loading.spec_source import MAX_CHAIN

Write = Callable[..., Path]

BASE = """version: 1
id: base
task: {prompt: do it, system: be kind}
agent: {type: command, command: [run], env: {A: "1", B: "2"}}
tags: [x, y]
invariants:
  one: {weight: 0.5, check: {type: file_exists, path: a}}
"""


def error(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        load(path, TYPES)
    return caught.value.message.replace(str(path.parent), "<here>")


def test_mappings_merge_lists_and_scalars_replace(write: Write, directory: Path) -> None:
    write(BASE, "shared/base.yaml")
    path = write(
        """extends: shared/base.yaml
id: mine
agent: {env: {B: "3"}}
tags: [z]
invariants:
  one: {weight: 2}
  two: {check: {type: file_exists, path: b}}
"""
    )
    loaded = load(path, TYPES)
    spec = loaded.spec
    assert (spec.id, spec.tags, spec.task.system) == ("mine", ["z"], "be kind")
    assert spec.agent.env == {"A": "1", "B": "3"}
    assert list(spec.invariants) == ["one", "two"]
    assert spec.invariants["one"].weight == 2
    assert loaded.lines == {"one": 6, "two": 7}
    assert loaded.withheld == {directory / "keystone.yaml", directory / "shared/base.yaml"}


def test_a_base_may_extend_another_and_changes_the_digest(write: Write) -> None:
    write(BASE, "a.yaml")
    write("extends: a.yaml\nid: b\n", "b.yaml")
    path = write("extends: b.yaml\n")
    first = load(path, TYPES)
    assert first.spec.id == "b"
    assert first.lines == {"one": 1}
    write(BASE + "description: changed\n", "a.yaml")
    assert load(path, TYPES).sha256 != first.sha256


def test_errors_point_into_the_right_file(write: Write) -> None:
    write(BASE + "colour: red\n", "base.yaml")
    path = write("extends: base.yaml\nid: Wrong\n")
    lines = error(path).splitlines()
    assert lines[0].startswith("<here>/base.yaml:8:1: unknown key 'colour'")
    assert lines[3] == "<here>/keystone.yaml:2:5: id, found 'Wrong', expected kebab-case: a-z, 0-9 and single dashes"


def test_doubled_keys_are_found_in_each_file(write: Write) -> None:
    write(BASE + "tags: [q]\n", "base.yaml")
    message = error(write("extends: base.yaml\nid: a\nid: b\n"))
    assert "base.yaml:8:1: the key 'tags' is there twice" in message
    assert "keystone.yaml:3:1: the key 'id' is there twice" in message
    assert message.count("twice") == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("extends: keystone.yaml\n", "extends goes in a circle"),
        ("extends: ./x/../keystone.yaml\n", "extends goes in a circle"),
        ("extends: circle.yaml\n", "circle.yaml:1:10: extends goes in a circle"),
        ("extends: gone.yaml\n", "there is no file 'gone.yaml'; paths are relative to"),
        ("extends: /etc/passwd\n", "extends leaves"),
        ("extends: ../../x.yaml\n", "extends leaves"),
        ("extends: list.yaml\n", "list.yaml:1:1: a spec, found a list"),
        ("extends: empty.yaml\n", "empty.yaml:1:1: the file is empty"),
        ("extends: broken.yaml\n", "broken.yaml:1:5: not readable as YAML"),
        ("extends: loop.yaml\nx: &a [*a]\n", "an alias that contains itself"),
        ("extends: [a]\n", "extends, found a list, expected a text"),
        ("extends: chain-0.yaml\n", f"more than {MAX_CHAIN} files extend each other"),
    ],
)
def test_what_can_not_be_extended(write: Write, text: str, expected: str) -> None:
    write("extends: keystone.yaml\n", "circle.yaml")
    write("- a\n", "list.yaml")
    write("", "empty.yaml")
    write("a: b: c\n", "broken.yaml")
    write("id: loop\n", "loop.yaml")
    write("", "x/keep")
    for number in range(MAX_CHAIN + 1):
        write(f"extends: chain-{number + 1}.yaml\n", f"chain-{number}.yaml")
    assert expected in error(write(text))
