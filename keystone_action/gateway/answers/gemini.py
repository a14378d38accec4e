"""Answers of Google's Gemini API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from keystone_action.evidence.trace_readers.builder import mapping, objects, text
from keystone_action.gateway.answers.joined import Fields, Items, append, join, replace, settled
from keystone_action.gateway.answers.rendering import split
from keystone_action.gateway.exchange import Assembler

_TOLD_AGAIN = {
    *("groundingMetadata", "urlContextMetadata", "citationMetadata"),
    *("grounding_metadata", "url_context_metadata", "citation_metadata"),
}
"""Of a candidate: what a piece of a stream may tell again, or add to."""
_CHANCES = {"logprobsResult", "logprobs_result"}
_PLAIN = {"text", "thought"}
"""A part with nothing but these goes on in the next one."""


class GenerationAssembler(Assembler):
    """Puts a `GenerateContentResponse` together."""

    def __init__(self) -> None:
        self._response = Fields()
        self._usage = Fields()
        self._candidates: dict[int, _Candidate] = {}

    def event(self, data: Mapping[str, Any]) -> None:
        replace(self._response, {k: v for k, v in data.items() if k not in {"candidates", "usageMetadata"}})
        self._usage.update(mapping(data, "usageMetadata"))
        for candidate in objects(data, "candidates"):
            index = candidate.get("index")
            place = index if isinstance(index, int) else 0
            self._candidates.setdefault(place, _Candidate()).add(candidate)

    def document(self) -> dict[str, Any]:
        candidates = [candidate.document() for candidate in self._candidates.values()]
        found = {**self._response, **({"candidates": candidates} if candidates else {})}
        return {**found, "usageMetadata": {**self._usage}} if self._usage else found


class _Candidate:
    def __init__(self) -> None:
        self._fields, self._content = Fields(), Fields()
        self._told: dict[str, _Told] = {}

    def add(self, candidate: Mapping[str, Any]) -> None:
        for name, value in candidate.items():
            if name in _TOLD_AGAIN and isinstance(value, dict):
                self._told.setdefault(name, _Told()).add(value)
            elif name in _CHANCES and isinstance(value, dict):
                join(self._fields, {name: value})
            elif name != "content" or not isinstance(value, dict):
                replace(self._fields, {name: value})
            else:
                replace(self._content, {k: v for k, v in value.items() if k != "parts" or not isinstance(v, list)})
                self._parts(value.get("parts"))

    def _parts(self, parts: Any) -> None:
        if not isinstance(parts, list):
            return
        known = self._content.setdefault("parts", Items())
        if not isinstance(known, Items):
            return
        for part in parts:
            last = known[-1] if known else None
            if _is_plain(part) and isinstance(last, Fields) and last.get("thought") == part.get("thought"):
                append(last, "text", part["text"])
            else:
                known.append(Fields(part) if _is_plain(part) else part)

    def document(self) -> dict[str, Any]:
        told = {name: one.document() for name, one in self._told.items()}
        content = {"content": self._content} if self._content else {}
        found: dict[str, Any] = settled(Fields({**content, **self._fields, **told}))
        return found


def _is_plain(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str) and set(part) <= _PLAIN


class _Told:
    """An object whose lists hold each item once, however often it is told."""

    def __init__(self) -> None:
        self._fields = Fields()
        self._known: dict[str, set[str]] = {}

    def add(self, told: Mapping[str, Any]) -> None:
        for name, value in told.items():
            if not isinstance(value, list):
                replace(self._fields, {name: value})
                continue
            known = self._known.setdefault(name, set())
            items = self._fields.get(name)
            if not isinstance(items, Items):
                items = self._fields[name] = Items()
            new = [(key, item) for item in value if (key := _key(item)) not in known]
            items += [item for _, item in new]
            known.update(key for key, _ in new)

    def document(self) -> Fields:
        return self._fields


def _key(item: Any) -> str:
    try:
        return json.dumps(item, sort_keys=True)
    except RecursionError:
        return str(id(item))  # nested too deep to be compared


def generation_events(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The answer as its stream tells it: piece by piece what is said, and with the last piece all the rest."""
    head = {name: document[name] for name in ("modelVersion", "responseId") if name in document}
    found = document.get("candidates")
    pieces = [piece for candidate in found for piece in _pieces(candidate)] if isinstance(found, list) else []
    for piece in pieces[:-1]:
        yield {"candidates": [piece], **head}
    yield {**document, "candidates": pieces[-1:]} if pieces else dict(document)


def _pieces(candidate: Any) -> list[Any]:
    if not isinstance(candidate, dict):
        return [candidate]
    content = mapping(candidate, "content")
    told = content.get("parts")
    parts = [piece for part in told for piece in _pieces_of_part(part)] if isinstance(told, list) else []
    place = {"index": candidate["index"]} if "index" in candidate else {}
    began = [{"content": {**content, "parts": [part]}, **place} for part in parts[:-1]]
    return [*began, {**candidate, "content": {**content, "parts": parts[-1:]}} if parts else candidate]


def _pieces_of_part(part: Any) -> list[Any]:
    return [{**part, "text": piece} for piece in split(text(part, "text"))] if _is_plain(part) else [part]
