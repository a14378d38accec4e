"""docs/checks: a page for each check type, and what is made of models and docstrings is what they say now."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field, WithJsonSchema
from support.page_examples import PAGES, examples, fits, page

from keystone_action.invariants.check import Check, CheckContext, Outcome, passed
from keystone_action.spec.field_texts import default_words, type_words
from keystone_action.spec.format_reference import json_schema
from keystone_action.spec.models.fields import (
    AuthorPath,
    Duration,
    RegexPattern,
    Size,
    StrictModel,
    Text,
    TextOrList,
    TextOrMapping,
    WorkspacePath,
    text_like,
)
from tools.check_pages import BEGIN, END, check_types, described, index, pages, rewritten

TYPES = check_types()


def test_every_type_has_a_page_and_every_page_a_type() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {*TYPES, "README"}


@pytest.mark.parametrize(("path", "text"), pages().items(), ids=lambda one: getattr(one, "stem", ""))
def test_what_is_made_is_up_to_date(path: Path, text: str) -> None:
    assert path.read_text("utf-8") == text, "run: python -m tools.check_pages"


@pytest.mark.parametrize("name", TYPES)
def test_every_page_has_an_example_that_shows_its_failure(name: str) -> None:
    found = examples(page(name))
    assert found, "a page needs an ## Example"
    for variants in found.values():
        for variant in variants.values():
            assert "keystone.yaml" in variant.files
            assert variant.message
    assert "\n## Details\n" in page(name), "a page says under ## Details what the check adds to its result"


def test_the_list_leads_to_every_page() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]\((\w+)\.md\)", (PAGES / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == [(name, name) for name in TYPES]
    assert "docs/checks/README.md" in (PAGES.parent.parent / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", TYPES)
def test_editors_are_told_what_each_field_means(name: str) -> None:
    schema = json_schema({name: TYPES[name]})["$defs"]
    own = [key for key in schema if key == f"check.{name}" or key.startswith(f"{name}.")]
    assert own
    for key in own:
        assert schema[key]["description"], key
        untold = [field for field, about in schema[key].get("properties", {}).items() if not about.get("description")]
        assert [field for field in untold if field != "type"] == [], key


class Base(StrictModel):
    size: int = Field(default=1, description="How large.", examples=[2])


class Part(Base):
    """A part."""

    at: Annotated[str, WorkspacePath(glob=True)]
    """Where | it
    is.

    Example: `a|b`
    Example: `c`
    """


class Made(Check):
    """Does something. And more.

    A second
    paragraph.
    """

    type_name: ClassVar[str] = "made"
    aliases: ClassVar[tuple[str, ...]] = ("built",)

    parts: list[TextOrMapping[Annotated[str, AuthorPath("file")], Part]]
    """The parts.

    Example: `[x]`
    """
    runs_in: Literal["host", "sandbox"] = Field(default="host", description="Where.", examples=["host"])

    @classmethod
    def upgrade(cls, document: dict[str, Any]) -> dict[str, Any]:
        """`old` becomes `parts`."""
        return document

    async def evaluate(self, context: CheckContext) -> Outcome:
        return passed("Made.")


class Untold(Made):
    told: str
    """Without an example."""


def test_a_page_is_made_of_docstring_fields_and_class_variables() -> None:
    text = described(Made)
    assert text.startswith(
        "# `made`\n\nDoes something. And more.\n\nA second paragraph.\n\nAlso called `built`. `old` "
    )
    assert (
        '| <a id="parts"></a>`parts` | list of paths, relative to the spec; or mappings (keys below) | required | '
        "The parts. Example: `parts: [x]` |" in text
    )
    assert "### Keys of `parts[]`\n\nA part.\n\n" in text
    assert (
        '| <a id="parts.at"></a>`at` | path or glob in the workspace | required | '
        "Where \\| it is. Examples: `at: a\\|b`, `at: c` |\n"
        '| <a id="parts.size"></a>`size` | whole number |' in text
    )
    assert (
        '| <a id="runs_in"></a>`runs_in` | `host` or `sandbox` | `host` | Where. Example: `runs_in: "host"` |' in text
    )
    assert "Its time limit is 60 s, or the invariant's `timeout`; past it, it is in error." in text
    assert index({"made": Made}).endswith("| [`made`](made.md) (`built`) | Does something. |")


def test_a_field_without_a_description_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Untold\.told has no description or no example"):
        described(Untold)


def test_only_the_made_part_is_rewritten() -> None:
    first = rewritten("", "one", "x.py")
    assert first == f"{BEGIN.format(source='x.py', tool='check_pages')}\n\none\n\n{END}\n"
    assert rewritten(f"{first}\n## Example\n", "two", "x.py") == first.replace("one", "two") + "\n## Example\n"
    assert rewritten("by hand\n", "one", "x.py") == f"{first}\nby hand\n"
    with pytest.raises(ValueError, match="has no end"):
        rewritten(first.replace(END, ""), "two", "x.py")


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (str, "text"),
        (bool | None, "true or false"),
        (int | float | str, "number or text"),
        (Annotated[int, Field(ge=0, le=5)], "whole number from 0 to 5"),
        (Annotated[float, Field(ge=0.5)] | None, "number from 0.5"),
        (Duration, "duration (`90`, `90s`, `10m`)"),
        (Size, "size (`512Mi`, `2G`)"),
        (list[Size], "list of sizes"),
        (Text, "text"),
        (Annotated[float, Field(gt=0)], "number above 0"),
        (Annotated[int, Field(le=4294967295)], "whole number to 4294967295"),
        (Literal[True], "`true`"),
        (Annotated[str, WithJsonSchema({"const": "a"})], "`a`"),
        (Annotated[int, WithJsonSchema({"type": "string"})], "text"),
        (Annotated[str, text_like("^a$", "an a")], "text (an a)"),
        (list[Annotated[str, text_like("^a$", "an a")]], "list of texts"),
        (list[Annotated[str, RegexPattern()]], "list of regular expressions"),
        (dict[str, list[Any]], "mapping of texts to lists of values"),
        (TextOrList[str, list[str]], "text or list of texts"),
        (bool | list[Part], "true or false; or list of mappings (keys below)"),
        (Literal["a", "b", "c"], "`a`, `b` or `c`"),
    ],
)
def test_types_in_words(annotation: Any, words: str) -> None:
    assert type_words(annotation) == words


def test_a_type_without_words_is_refused() -> None:
    with pytest.raises(TypeError, match="no words"):
        type_words(set[str])


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (Field(), "required"),
        (Field(default=None), "—"),
        (Field(default_factory=list), "—"),
        (Field(default_factory=lambda: Part(at="x")), "—"),
        (Field(default=True), "`true`"),
        (Field(default=0.0), "`0`"),
        (Field(default=0.85), "`0.85`"),
        (Field(default="name"), "`name`"),
        (Field(default=""), "—"),
        (Field(default_factory=lambda: ["a", "b"]), "`[a, b]`"),
    ],
)
def test_defaults_in_words(field: Any, words: str) -> None:
    assert default_words(field) == words


def test_examples_are_taken_apart() -> None:
    text = (
        "## Example\n\nThe spec, `keystone.yaml`:\n\n```yaml\na: 1\n```\n\n`x/y` is:\n\n```\n### Passes\n```\n"
        "### Passes\n\nIts message:\n\n```text\nyes\n```\n\n"
        "### Fails\n\nNow `x/y`:\n\n```\n2\n```\n\nIts message, with a score of 0.5:\n\n```text\nno\n```\n\n"
        "The judge answers:\n\n```json\n3\n```\n## Details\n"
    )
    both = examples(text)["Example"]
    assert both["Passes"].files == {"keystone.yaml": "a: 1\n", "x/y": "### Passes\n"}
    assert both["Fails"].files == {"keystone.yaml": "a: 1\n", "x/y": "2\n"}
    assert (both["Passes"].message, both["Fails"].message, both["Fails"].judge) == ("yes\n", "no\n", "3\n")


@pytest.mark.parametrize(
    "text",
    ["## Example\n### Fails\n", "## Example\n```\nx\n```\n### Passes\n### Fails\n", "## Example\nX:\n```\nx\n```\n"],
)
def test_examples_that_say_too_little_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        examples(text + "### Passes\n### Fails\n" * ("### " not in text))


def test_messages_are_compared_whole() -> None:
    assert fits("a … (b)\n", "a x\ny (b)")
    assert not fits("a", "a b")
    assert not fits("a.c", "abc")
