"""Results as JSON documents and back: what `results.json` and the lines of `journal.jsonl` hold, and the schema of it.

Keys come in the order of the contract (section 3), keys of our own after them. Neither NaN nor an infinity gets out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast, get_args, get_origin, get_type_hints

from pydantic import PlainSerializer, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from keystone_action.errors import UsageError
from keystone_action.scoring.results import SCHEMA_VERSION, CellResult, RunResult, SandboxInfo

RESULTS_FILE = "results.json"
"""What reports call the file of a run's results."""
ResultsDocument = dict[str, Any]


def run_to_document(run: RunResult) -> ResultsDocument:
    """The document of `results.json`. Raises ValueError when a score, a weight or a time is not a finite number."""
    document: ResultsDocument = _to_document(run)
    return document


def cell_to_document(cell: CellResult) -> ResultsDocument:
    """One finished cell, as in `specs[].cells[]` and in a line of the journal. Raises ValueError as run_to_document."""
    document: ResultsDocument = _to_document(cell)
    return document


def sandbox_to_document(sandbox: SandboxInfo) -> ResultsDocument:
    """What isolated an agent, as in `sandbox` and in a line of the journal."""
    document: ResultsDocument = _to_document(sandbox)
    return document


def run_from_document(document: Mapping[str, Any]) -> RunResult:
    """The inverse of run_to_document. Raises UsageError for another schema_version and for anything malformed."""
    require_schema_version(document)
    run: RunResult = _from_document(RunResult, document, "the results")
    return run


def cell_from_document(document: Mapping[str, Any]) -> CellResult:
    """The inverse of cell_to_document. Raises UsageError for anything malformed. A cell has no schema_version of its
    own: the run's document, or the journal's first line, says it once."""
    cell: CellResult = _from_document(CellResult, document, "the results of a cell")
    return cell


def sandbox_from_document(document: Mapping[str, Any]) -> SandboxInfo:
    """The inverse of sandbox_to_document. Raises UsageError for anything malformed."""
    sandbox: SandboxInfo = _from_document(SandboxInfo, document, "what isolated a cell")
    return sandbox


def require_schema_version(document: Mapping[str, Any]) -> None:
    """Refuse, with UsageError, what another version of the format wrote."""
    found = document.get("schema_version")
    if isinstance(found, bool) or found != SCHEMA_VERSION:
        raise UsageError(
            f"schema_version: expected {SCHEMA_VERSION}, found {json.dumps(found, default=str)}",
            help="These results were written by another version of Keystone; read them with that one, or run again.",
        )


def results_schema() -> dict[str, Any]:
    """The published JSON Schema of `results.json` (draft 2020-12)."""
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "title": "Keystone results",
        "$comment": "Later versions may add keys; another meaning of a key gets another schema_version.",
        **_adapter(RunResult).json_schema(schema_generator=_Schema),
    }


class _Schema(GenerateJsonSchema):
    """A schema of documents as we write them: no key is ever missing, though a reader takes the default for some."""

    def field_is_required(self, *_: Any, **__: Any) -> bool:
        return True

    def field_title_should_be_set(self, _: Any) -> bool:
        return False

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """What is said under each field is its description."""
        from keystone_action.spec.field_texts import attribute_docstrings, paragraphs

        made = super().dataclass_schema(schema)
        for name, text in attribute_docstrings(schema["cls"]).items():
            made["properties"][name]["description"] = paragraphs(text)
        return made

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _to_document(result: Any) -> Any:
    """What pydantic's own serializer makes of it, without building the schema for that: every run writes results, few
    read them, and the schema costs 40 ms."""
    return {name: write(getattr(result, name)) for name, write in _fields_of(result.__class__)}


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    annotations = get_type_hints(kind, include_extras=True)
    return tuple((field.name, _writer(annotations[field.name])) for field in fields(kind))


def _writer(annotation: Any) -> Callable[[Any], Any]:
    """How a field with this annotation is written."""
    if is_dataclass(annotation):
        return _to_document
    for note in getattr(annotation, "__metadata__", ()):
        if isinstance(note, PlainSerializer):
            return cast(Callable[[Any], Any], note.func)
    inner = [each for each in map(_writer, get_args(annotation)) if each is not _as_json]
    if not inner:
        return _as_json
    (each,) = inner  # of a tuple of one type, or of a type that may be None
    if get_origin(annotation) is tuple:
        return lambda found: [each(item) for item in found]
    return lambda found: None if found is None else each(found)


def _as_json(found: Any) -> Any:
    return list(found) if isinstance(found, tuple) else found


def _from_document(kind: Any, document: Mapping[str, Any], what: str) -> Any:
    try:
        # Strict JSON mode takes lists for tuples and nothing else that is not what it should be.
        return _adapter(kind).validate_json(json.dumps(document, allow_nan=False), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        found = json.dumps(first["input"], default=str)[:80]
        raise _malformed_results(what, f"{where}: {first['msg'].lower()}, found {found}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise _malformed_results(what, f"not JSON: {error}") from None


def _malformed_results(what: str, why: str) -> UsageError:
    return UsageError(
        f"can't read {what}: {why}", help="The file was changed or cut short; run again to get a new one."
    )
