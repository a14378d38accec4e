"""The words of the reference: every field has a description, examples that load, and the default of the loader."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import Field
from support.field_examples import Place, places, spec_text, write_files

from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec import field_texts as docstrings
from keystone_action.spec.field_texts import (
    FieldText,
    default_value,
    description,
    duration_text,
    field_texts,
    is_default_null_a_value,
)
from keystone_action.spec.format_reference import json_schema
from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load
from keystone_action.spec.loading.rules import OF_PROGRAMS
from keystone_action.spec.models.agents import HttpAgent, LoopAgent
from keystone_action.spec.models.fields import CheckModel, StrictModel, parse_duration

PLACES = [pytest.param(place, id=place.model.__name__) for place in places()]
TYPES = CheckTypes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds what the examples name."""
    found = tmp_path_factory.mktemp("examples")
    write_files(found)
    return found


def loaded(folder: Path, text: str) -> LoadedSpec:
    path = folder / "keystone.yaml"
    path.write_text(text, "utf-8")
    try:
        return load(path, TYPES)
    except SpecError as error:
        raise AssertionError(f"{error}\n{text}") from None


@pytest.mark.parametrize("place", PLACES)
def test_every_field_has_words_and_examples_that_load(folder: Path, place: Place) -> None:
    for name, text in field_texts(place.model).items():
        assert text.description, name
        assert text.examples, name
        for value in text.values:
            example = spec_text(place, place.model.model_fields[name].alias or name, value)
            if place.model is HttpAgent and name in OF_PROGRAMS and value != "stdout":
                with pytest.raises(AssertionError, match=f"an agent of the type http has no '{name}'"):
                    loaded(folder, example)
            elif place.model is LoopAgent and name == "stdin":
                with pytest.raises(AssertionError, match=r"agent\.stdin means nothing for this agent"):
                    loaded(folder, example)
            else:
                loaded(folder, example)


@pytest.mark.parametrize("place", PLACES)
def test_every_default_is_what_the_loader_takes(folder: Path, place: Place) -> None:
    for name, field in place.model.model_fields.items():
        if field.is_required() or is_default_null_a_value(field):
            continue
        value, own = default_value(field), field.get_default(call_default_factory=True, validated_data={})
        if value is None:
            assert own is None, name
        else:
            text = spec_text(place, field.alias or name, value)
            assert getattr(_at(loaded(folder, text), place), name) == own, name


def _at(found: LoadedSpec, place: Place) -> Any:
    """The model that stands at a place."""
    seen: list[Any] = []

    def walk(value: Any) -> None:
        if isinstance(value, place.model):
            seen.append(value)
        inner = vars(value) if isinstance(value, StrictModel) else value
        for one in inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list | tuple) else ():
            walk(one)

    walk(found.spec)
    return seen[-1]


@cache
def schema_parts() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json_schema(TYPES)["$defs"]
    return found


@pytest.mark.parametrize("name", schema_parts())
def test_every_definition_and_every_property_of_the_schema_says_what_it_is(name: str) -> None:
    schema = schema_parts()[name]
    assert schema["description"]
    for key, about in schema.get("properties", {}).items():
        assert about["description"], key
        assert about["markdownDescription"].startswith(about["description"]), key
        assert about["examples"], key
        assert {"type", "$ref", "anyOf", "oneOf", "const", "enum"} & about.keys(), key
        assert "title" not in about, key


def test_every_optional_property_has_its_default() -> None:
    without = {
        f"{name}.{key}"
        for name, schema in schema_parts().items()
        for key, about in schema.get("properties", {}).items()
        if key not in schema.get("required", []) and "default" not in about
    }
    # Where null is a value as any other, no default could be written down.
    assert {one.rpartition(".")[2] for one in without} == {
        "equals", "not_equals", "contains", "not_contains", "json", "input", "expected", "body", "status", "extends",
    }  # fmt: skip


def test_nothing_that_is_never_supported_is_in_the_schema() -> None:
    parts = schema_parts()
    assert parts["CommandAgent"]["properties"]["user"]["const"] == "unprivileged"


class Base(StrictModel):
    """A base."""

    size: int = 1
    """How large
    it is.

    In bytes.

    Example: `2`
    Example: `[3, "{{ x }}"]`
    """
    bare: int = 1


class Outer(Base):
    """An outer one.

    With more.
    """

    class Inner(StrictModel):
        """An inner one."""

        at: str
        """Where.

        Example: `"a: b"`
        """

    own: Annotated[str, Field(description="Its\nown.", examples=["x", {"y": 1}])]
    """Not this."""
    size: int = 3


class Own(CheckModel):
    """What it does. And more."""

    type_name: ClassVar[str] = "own"


def test_words_are_read_below_fields_of_the_class_and_of_its_bases() -> None:
    size = FieldText("How large it is.\n\nIn bytes.", ("2", '[3, "{{ x }}"]'))
    assert field_texts(Base) == {"size": size, "bare": FieldText()}
    assert field_texts(Outer)["size"] == size
    assert size.values == (2, [3, "{{ x }}"])
    assert field_texts(Outer.Inner)["at"].values == ("a: b",)


def test_a_field_with_a_description_of_pydantic_keeps_it() -> None:
    assert field_texts(Outer)["own"] == FieldText("Its own.", ('"x"', '{"y": 1}'))
    assert field_texts(Outer)["own"].values == ("x", {"y": 1})
    assert description(Outer) == "An outer one.\n\nWith more."


def test_the_type_of_a_check_is_described_by_its_class() -> None:
    assert field_texts(Own)["type"] == FieldText("What it does. And more.", ("own",))


def test_a_model_without_its_source_has_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    made: type[StrictModel] = type("Made", (StrictModel,), {"__annotations__": {"a": int}, "__module__": "nowhere"})
    assert field_texts(made) == {"a": FieldText()}
    monkeypatch.setattr(docstrings.inspect, "getsource", lambda _: "not Python (")
    docstrings._docstrings.cache_clear()
    try:
        assert docstrings._docstrings(__name__) == {}
    finally:
        docstrings._docstrings.cache_clear()


@pytest.mark.parametrize("text", ["{a", "1\nb: 2", "x: y: z"])
def test_an_example_that_is_no_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a value of a spec"):
        _ = FieldText("x", (text,)).values


@pytest.mark.parametrize("text", ["10m", "1h30m", "1m30s", "250ms", "24h", "1s500ms"])
def test_a_duration_is_written_as_it_is_read(text: str) -> None:
    assert duration_text(parse_duration(text)) == text


def test_places_lead_to_every_model() -> None:
    names = {place.model.__name__ for place in places()}
    assert {"Spec", "PresetAgent", "MockResponse", "AtLeast", "Operators", "Placement", "ToolMatcher"} <= names
