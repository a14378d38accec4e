"""`keystone recordings`: what is in the recordings below a folder, as people read it, and whether each can be replayed.

Anybody may have written these files, so all that is shown of them is masked, and escaped for terminals.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from keystone_action.errors import EXIT_FAIL, EXIT_PASS, UsageError
from keystone_action.evidence.masking import Masker
from keystone_action.gateway.recordings.files import COUNTS, read_recording
from keystone_action.gateway.recordings.recording import CONVERSATIONS, RecordingError, documents_of
from keystone_action.gateway.registry import provider_for
from keystone_action.report import words
from keystone_action.report.escape import log_line
from keystone_action.report.sentences.facts import money, short_count
from keystone_action.runner.journal.entries import holds_results
from keystone_action.runner.secrets import is_key
from keystone_action.spec.walking import walk

if TYPE_CHECKING:
    from keystone_action.gateway.api import ModelApi
    from keystone_action.gateway.exchange import Answer
    from keystone_action.gateway.recordings.recording import Entry, Recording

_SUFFIX = ".jsonl"
_COLUMNS = ("CELL", "SPEC", "DATE", "PROVIDER", "MODEL", "REQUESTS", "TOKENS", "COST")
_NUMBERS = frozenset({"REQUESTS", "TOKENS", "COST"})
_WIDEST = 60
_NEVER = frozenset({".git", ".keystone"})
"""Folders that are not looked into."""
_LINE = re.compile(r"^:(\d+): ")
_ADVICE = "name a file, or the folder of a spec's recordings, such as recordings/my-spec"


@dataclass(frozen=True, slots=True)
class ExaminedFile:
    """A file that should hold a recording."""

    shown: str
    """Its path, relative to the folder that was named."""
    row: dict[str, Any] | None = None
    """What is in it; None where it can't be read."""
    problem: str = ""
    """Why it can't be replayed, in one line; empty when it can."""


class Recordings:
    """Those below a folder, or in one file. directory: what the place is relative to. environ: with the keys that are
    masked. Raises UsageError where there is none."""

    def __init__(self, place: Path, directory: Path, environ: Mapping[str, str], out: IO[str], errors: IO[str]) -> None:
        top = directory / place
        self._top = top if top.is_dir() else top.parent
        if not os.path.lexists(top):
            raise UsageError(f"there is no file or folder {place}", help=_ADVICE)
        self._paths = sorted(_files(top))
        self._masker = Masker([value for name, value in environ.items() if is_key(name)])
        self._out, self._errors = out, errors
        if not self._paths:
            raise UsageError(f"there are no recordings in {place}: no files with the ending {_SUFFIX}", help=_ADVICE)

    def list(self, kind: str) -> int:
        """A line for each. What is wrong with others is told on stderr."""
        examined = [self._examine(path) for path in self._paths]
        rows = [one.row for one in examined if one.row is not None]
        if kind == "json":
            self._print_document({"recordings": rows, "problems": _problems(examined)})
        elif rows:
            table = [_COLUMNS, *(_cells(row) for row in rows)]
            widths = [min(_WIDEST, max(map(len, column))) for column in zip(*table, strict=True)]
            for line in table:
                self._print("  ".join(map(_aligned, line, widths, _COLUMNS)).rstrip())
        return self._report(_problems(examined), self._errors)

    def check(self, kind: str) -> int:
        """Whether every one of them can be replayed; a line for each that can't."""
        problems = _problems(self._examine(path) for path in self._paths)
        if kind == "json":
            self._print_document({"recordings": len(self._paths), "problems": problems})
            return EXIT_FAIL if problems else EXIT_PASS
        code = self._report(problems, self._out)
        bad = f", {len(problems):,} can't be replayed" if problems else ", all can be replayed"
        self._print(f"{words.count(len(self._paths), 'recording')}{bad}")
        return code

    def show(self, cell: str | None, kind: str) -> int:
        """One recording, request by request. cell: which one, None = the only one. Raises UsageError."""
        # was an import of itself

        path = self._only(cell)
        try:
            recording = self._recording(path)
        except (RecordingError, OSError) as error:
            raise UsageError(self._said(error, path)) from None
        row = _row(recording)
        if kind == "json":
            self._print_document({**row, "entries": list(documents_of(recording.entries))})
            return EXIT_PASS
        self._print(f"{row['cell']}, recorded {words.moment(row['date'])} by Keystone {row['product']}")
        self._print(f"{words.count(row['requests'], 'request')}, {_tokens(row)} tokens, {_cost(row)}")
        for line in _lines(recording):
            self._print(line)
        return EXIT_PASS

    def _only(self, cell: str | None) -> Path:
        chosen = [path for path in self._paths if cell is None or path.stem == cell]
        names = ", ".join(path.stem for path in self._paths[:10]) + (" …" if len(self._paths) > 10 else "")
        if not chosen:
            raise UsageError(f"there is no recording of {cell!r} here", help=f"there are {names}")
        if len(chosen) > 1:
            raise UsageError(f"there are {len(chosen):,} recordings here", help=f"add the cell to be shown: {names}")
        return chosen[0]

    def _recording(self, path: Path) -> Recording:
        return read_recording(path, below=self._top)

    def _examine(self, path: Path) -> ExaminedFile:
        shown = path.relative_to(self._top).as_posix()
        try:
            recording = self._recording(path)
        except (RecordingError, OSError) as error:
            said = self._said(error, path).removeprefix(shown)
            return ExaminedFile(shown, problem=_LINE.sub(r"line \1: ", said).lstrip(": "))
        return ExaminedFile(shown, _row(recording), _contradiction(path, recording))

    def _said(self, error: RecordingError | OSError, path: Path) -> str:
        said = error.sentences if isinstance(error, RecordingError) else f"{path} can't be read: {error.strerror}"
        return " ".join(said.split()).replace(str(path), path.relative_to(self._top).as_posix())

    def _report(self, problems: Sequence[Mapping[str, str]], stream: IO[str]) -> int:
        for one in problems:
            stream.write(f"{log_line(self._masker.text(': '.join(one.values())))}\n")
        return EXIT_FAIL if problems else EXIT_PASS

    def _print(self, line: str) -> None:
        self._out.write(f"{log_line(self._masker.text(line))}\n")

    def _print_document(self, document: Any) -> None:
        # Escapes of JSON: nothing in it can reach a terminal as a control character.
        self._out.write(json.dumps(self._masker.value(document), indent=1) + "\n")


def _problems(examined: Iterable[ExaminedFile]) -> list[dict[str, str]]:
    return [{"file": one.shown, "problem": one.problem} for one in examined if one.problem]


def _files(top: Path) -> Iterator[Path]:
    """The file itself, or all below a folder, but for results of runs, which are lines of JSON too. Raises UsageError
    for what can't be looked into."""
    if not top.is_dir():
        yield top
        return
    for place, folders, names in walk(top, _raise_unlisted):
        yield from (Path(place) / name for name in names if name.endswith(_SUFFIX) and not name.startswith("."))
        folders[:] = [name for name in folders if name not in _NEVER and not holds_results(Path(place) / name)]


def _raise_unlisted(error: OSError) -> None:
    raise UsageError(f"{error.filename} can't be listed: {error.strerror}", help="check its permissions")


def _contradiction(path: Path, recording: Recording) -> str:
    """Why the file is not what its name says: it was copied, or its first line is made up; empty when it is."""
    if path.stem != recording.cell:
        return f"it is of the cell {recording.cell!r}, and a file of that cell is {recording.cell}{_SUFFIX}"
    if recording.cell != recording.spec and not recording.cell.startswith(f"{recording.spec}."):
        return f"the cell {recording.cell!r} is not one of the spec {recording.spec!r}"
    return ""


def _row(recording: Recording) -> dict[str, Any]:
    entries = recording.entries
    costs = [_cost_of(one.api, one.model, one.usage) for one in entries]
    return {
        "cell": recording.cell,
        "spec": recording.spec,
        "date": recording.date,
        "product": recording.product,
        "providers": sorted({name for name, api in recording.providers.items() if api in {one.api for one in entries}}),
        "models": list(dict.fromkeys(one.model for one in entries)),
        "requests": len(entries),
        "tokens": {name: sum(one.usage.get(name) or 0 for one in entries) for name in COUNTS},
        "cost_usd": None if None in costs else sum(filter(None, costs)),
    }


def _cost_of(api: str, model: str, usage: Mapping[str, Any]) -> float | None:
    """US dollars of a request: as it was recorded, else by the price list for what was counted."""
    if usage.get("cost_usd") is not None:
        return float(usage["cost_usd"])
    counts: dict[str, Any] = {name: usage.get(name) or 0 for name in COUNTS}
    if not any(counts.values()):
        return 0.0 if usage else None
    from keystone_action.pricing import cost_of

    return cost_of(api, model, **counts)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    date = str(row["date"])[:16].replace("T", " ")
    texts = (row["cell"], row["spec"], date, ", ".join(row["providers"]), ", ".join(row["models"]))
    return (*(log_line(text) for text in texts), f"{row['requests']:,}", _tokens(row), _cost(row))


def _aligned(text: str, width: int, column: str) -> str:
    text = text if len(text) <= width else f"{text[: width - 1]}…"
    return text.rjust(width) if column in _NUMBERS else text.ljust(width)


def _tokens(row: Mapping[str, Any]) -> str:
    return short_count(sum(row["tokens"].values()))


def _cost(row: Mapping[str, Any]) -> str:
    return "cost unknown" if row["cost_usd"] is None else money(row["cost_usd"])


_LONGEST = 2_000
"""Characters of one text that are shown."""
_SHORT = 200
"""Of a field that holds no text for people."""
_INSTRUCTIONS = ("system", "instructions")
"""How the names of fields begin that say how the model is to behave."""
_TEXTS = ("text", "content", "parts", "output")
"""Under which names messages and their blocks have what was said."""


def _lines(recording: Recording) -> Iterator[str]:
    """Of each request what was new in it, and what was answered; not yet escaped."""
    pairs = zip(recording.entries, documents_of(recording.entries), strict=True)
    for number, (entry, document) in enumerate(pairs, 1):
        provider = _provider(entry)
        tools = "with tools" if entry.with_tools else "without tools"
        yield ""
        place = f"conversation {entry.conversation + 1} {tools}, turn {entry.turn + 1}"
        yield f"request {number:,} to {entry.model or 'no model'} ({provider.title}; {place})"
        yield from _asked(document, provider)
        yield f"  answered in {words.duration(entry.seconds)}" + ("" if entry.status == 200 else f" ({entry.status})")
        yield from _answered(entry, provider.whole(entry.answer))


def _provider(entry: Entry) -> ModelApi:
    return provider_for(entry.api if entry.api in ("anthropic", "gemini") else "openai", _reader(entry))


def _reader(entry: Entry) -> str:
    return "responses" if "input" in entry.request else "chat"


def _asked(document: Mapping[str, Any], provider: ModelApi) -> Iterator[str]:
    request: Mapping[str, Any] = document["request"]
    for field, value in request.items():
        if field == "tools":
            yield f"  tools: {', '.join(provider.asked(request, '').tools) or 'none'}"
        elif field in CONVERSATIONS and isinstance(value, list):
            for message in value:
                yield from _message(message)
        elif field != "model":
            yield from _field(field, value)
    if gone := document.get("without"):
        yield f"  no longer: {', '.join(gone)}"


def _message(message: Any) -> Iterator[str]:
    if not isinstance(message, dict):
        yield from _field("message", message)
        return
    name = str(message.get("role") or message.get("type") or "message")
    rest = {field: value for field, value in message.items() if field not in ("role", *_TEXTS)}
    said = [part for field in _TEXTS if field in message for part in _parts(message[field])]
    yield from _field(name, "\n".join(said))
    if rest.keys() - {"type"}:
        yield from _field(f"{name} with", rest)


def _parts(value: Any) -> Iterator[str]:
    """What was said, in texts; a block that is not a text, as JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, dict) and isinstance(value.get("text"), str):
        yield value["text"]
    elif isinstance(value, dict) and isinstance(inner := value.get("parts") or value.get("content"), str | list):
        yield from _parts(inner)
    else:
        yield _json(value)


def _field(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        texts = list(_parts(value)) if name.startswith(_INSTRUCTIONS) else [_cut(_json(value), _SHORT)]
        value = "\n".join(texts)
    first, *others = _cut(value if isinstance(value, str) else _json(value), _LONGEST).split("\n")
    yield f"  {name}: {first}".rstrip()
    yield from (f"    {line}" for line in others)


def _answered(entry: Entry, answer: Answer) -> Iterator[str]:
    if answer.problem:
        yield from _field("problem", answer.problem)
    if answer.thought:
        yield from _field("thought", answer.thought)
    if answer.text:
        yield from _field("said", answer.text)
    for call in answer.calls:
        yield from _field("called", f"{call.name} {_json(call.arguments)}")
    if not (answer.problem or answer.thought or answer.text or answer.calls):
        yield from _field("answer", entry.answer)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… and {len(text) - limit:,} characters more"
