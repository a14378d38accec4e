"""Datasets: JSONL, CSV, JSON and YAML files whose records become scenarios."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keystone_action.spec.loading.author_files import read_author_text
from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError, nearest, show_value
from keystone_action.spec.loading.loaded_spec import RECORD, Scenario, safe_id
from keystone_action.spec.loading.yaml_loader import SourceText, build_data, parse_yaml
from keystone_action.spec.models.experiment import Dataset

MAX_BYTES = 256 * 2**20
MAX_PROBLEMS = 50
_HALVES = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""Halves of surrogate pairs as JSON escapes them; what is whole is passed over first."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One record as it was read."""

    line: int
    """Counted from 1."""
    value: Any
    fields: tuple[str, ...] = ()
    """How the file calls its fields; empty = as the record does."""


def read_dataset(dataset: Dataset, path: Path, name: str) -> list[Scenario]:
    """The scenarios of a dataset. Raises SpecError with every bad record, at its line."""
    text = read_author_text(path, name, MAX_BYTES)
    source = SourceText(name, text)
    problems: list[Diagnostic] = []
    scenarios: list[Scenario] = []
    first: dict[str, int] = {}
    kept = 0
    for number, row in enumerate(_rows(path, source), start=1):
        try:
            scenario = _scenario(row, number, source)
            if scenario.id in first:
                message = f"the id {show_value(scenario.id)} is there twice"
                raise _bad(source, row.line, message, f"the first is on line {first[scenario.id]}")
            first[scenario.id] = row.line
        except SpecError as error:
            problems += error.diagnostics
            if len(problems) >= MAX_PROBLEMS:
                break
            continue
        wanted = not dataset.filter_tags or not set(dataset.filter_tags).isdisjoint(scenario.tags)
        if wanted and (dataset.limit is None or kept < dataset.limit):
            scenarios.append(scenario)
            kept += 1
    if problems:
        raise SpecError(problems)
    if not scenarios:
        tags = f" with one of the tags {', '.join(dataset.filter_tags)}" if dataset.filter_tags else ""
        raise SpecError([Diagnostic(name, 1, 1, f"no records{tags}", help="there is nothing to run")])
    return scenarios


def _bad(source: SourceText, line: int, message: str, advice: str = "", **words: str) -> SpecError:
    return SpecError([Diagnostic.at(source.position(line - 1, 0), message, help=advice, **words)])


def _rows(path: Path, source: SourceText) -> Iterator[_Row]:
    readers: dict[str, Callable[[SourceText], Iterator[_Row]]] = {
        ".jsonl": _json_lines,
        ".ndjson": _json_lines,
        ".csv": _csv,
        ".json": _json,
        ".yaml": _yaml,
        ".yml": _yaml,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        known = "a file that ends in .jsonl, .csv, .json or .yaml"
        raise SpecError([Diagnostic(source.name, 1, 1, "the kind of this dataset can't be told", expected=known)])
    return reader(source)


def _json_lines(source: SourceText) -> Iterator[_Row]:
    # str.splitlines would break at U+2028, which JSON allows inside of texts.
    for number, line in enumerate(source.text.split("\n"), start=1):
        if line.strip():
            yield _Row(number, _parse_json(line, source, number))


def _json(source: SourceText) -> Iterator[_Row]:
    document = _parse_json(source.text, source, 1)
    if not isinstance(document, list):
        raise _bad(source, 1, "the dataset", expected="a list of records", found=show_value(document))
    lines = _lines_of_items(source.text)
    for index, value in enumerate(document):
        yield _Row(lines[index] if index < len(lines) else 1, value)


def _lines_of_items(text: str) -> list[int]:
    """The line on which each item of a JSON list begins; the text was parsed before, so it is known to be JSON."""
    decoder = json.JSONDecoder()
    lines: list[int] = []
    position, line, counted = text.index("[") + 1, 1, 0
    while True:
        while text[position] in " \t\r\n,":
            position += 1
        if text[position] == "]":
            return lines
        line += text.count("\n", counted, position)
        counted = position
        lines.append(line)
        _, position = decoder.raw_decode(text, position)


def _parse_json(text: str, source: SourceText, line: int) -> Any:
    value = _load_json(text, source, line)
    found = next((found for found in _HALVES.finditer(text) if found["half"]), None) if "\\" in text else None
    if found is not None:
        before = text[: found.start()]
        at = source.position(line - 1 + before.count("\n"), found.start() - before.rfind("\n") - 1)
        message = f"{found['half']} is half of a character (a lone surrogate), which no text can hold"
        raise SpecError([Diagnostic.at(at, message, help="write the whole character")])
    return value


def _load_json(text: str, source: SourceText, line: int) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_integer)
    except json.JSONDecodeError as error:
        at = source.position(line + error.lineno - 2, error.colno - 1)
        raise SpecError([Diagnostic.at(at, f"not readable as JSON: {error.msg}")]) from None
    except (ValueError, RecursionError) as error:
        message = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise _bad(source, line, f"not readable as JSON: {message}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {show_value(twice)} is there twice")
    return mapping


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _integer(text: str) -> int:
    if len(text) > 4000:
        raise ValueError("a number of thousands of digits")
    return int(text)


def _yaml(source: SourceText) -> Iterator[_Row]:
    document = parse_yaml(source.text, source.name)
    if document is None:
        return
    data, problems = build_data(document)
    if problems:
        raise SpecError(problems)
    if not isinstance(data, list):
        raise _bad(source, 1, "the dataset", expected="a list of records", found=show_value(data))
    for index, value in enumerate(data):
        yield _Row(document.position((index,)).line, value)


def _csv(source: SourceText) -> Iterator[_Row]:
    import csv
    import io

    csv.field_size_limit(MAX_BYTES)  # a JSONL file has no other limit, either
    reader = csv.reader(io.StringIO(source.text, newline=""), strict=True)
    line = 1
    try:
        header = [column.strip() for column in next(reader, [])]
        other = next((one for one in (";", "\t") if len(header) == 1 and one in header[0]), "")
        if other:
            found = {"\t": "a tab"}.get(other, f"'{other}'")
            message = f"one column, whose name has {found} in it: it seems to be separated by {found}"
            raise _bad(source, 1, message, "separate the columns with commas")
        if len(set(header)) < len(header) or "" in header:
            raise _bad(source, 1, "the columns of the first line", expected="names that are there once")
        line = reader.line_num + 1
        for cells in reader:
            if cells and cells != [""]:
                if len(cells) != len(header):
                    raise _bad(source, line, f"{len(cells)} cells", expected=f"{len(header)}, as in the first line")
                yield _Row(line, _from_cells(dict(zip(header, cells, strict=True))), tuple(header))
            line = reader.line_num + 1
    except csv.Error as error:
        raise _bad(source, line, f"not readable as CSV: {error}") from None


def _from_cells(cells: dict[str, str]) -> dict[str, Any]:
    """A record from a line of CSV: an empty id, expected or tags is none, tags are separated by commas or semicolons,
    every further column is metadata."""
    record: dict[str, Any] = {"metadata": {key: value for key, value in cells.items() if key not in RECORD}}
    if "input" in cells:
        record["input"] = cells["input"]
    record.update({key: cells[key] for key in ("id", "expected") if cells.get(key)})
    if cells.get("tags"):
        record["tags"] = [tag.strip() for tag in cells["tags"].replace(";", ",").split(",") if tag.strip()]
    if cells.get("metadata"):
        record["metadata"]["metadata"] = cells["metadata"]
    return record


def _scenario(row: _Row, number: int, source: SourceText) -> Scenario:
    record = row.value
    if not isinstance(record, dict):
        raise _bad(source, row.line, "a record", expected="a mapping", found=show_value(record))
    for key in record:
        if key not in RECORD:
            known = f"one of {', '.join(RECORD)}"
            advice = "further fields belong into metadata"
            words = {"expected": known, "suggestion": nearest(key, RECORD)}
            raise _bad(source, row.line, f"unknown key {show_value(key)}", advice, **words)
    tags = record.get("tags") or []
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise _bad(source, row.line, "tags", expected="a list of texts", found=show_value(record["tags"]))
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise _bad(source, row.line, "metadata", expected="a mapping", found=show_value(metadata))
    identity = _identity(record.get("id"), row, number, source)
    full = {
        "id": str(record["id"]) if record.get("id") is not None else identity,
        "input": record.get("input"),
        "expected": record.get("expected"),
        "metadata": metadata,
        "tags": tags,
    }
    where = f"{source.name}:{row.line}"
    return Scenario(id=identity, record=full, tags=tuple(tags), where=where, fields=row.fields or tuple(record))


def _identity(found: Any, row: _Row, number: int, source: SourceText) -> str:
    if found is None:
        return f"record-{number}"
    if isinstance(found, float) and math.isfinite(found) and found.is_integer():
        found = int(found)
    identity = safe_id(str(found)) if isinstance(found, str | int) and not isinstance(found, bool) else ""
    if not identity:
        raise _bad(source, row.line, "id", expected="a text with letters or digits", found=show_value(found))
    return identity
