"""`Evidence` in a folder, and back: what was observed of a cell can be judged again where its agent is long gone.

    evidence.json     the plain parts, and the digests of the other files
    tree.tar.gz       the workspace as the agent left it; originals.tar.gz what it held before
    packages.tar.gz   the Python packages that the agent installed, where a check reads them
    audit.jsonl, trace.jsonl, stdout.txt, stderr.txt, output.txt, transcript.txt

The spec's secrets and the gateway's keys are not written, nor is what a database holds; the addresses of services are,
with the passwords in them. Nothing here is masked. A folder is read as the work of an enemy: digests are there against
accidents alone, so each value is checked, and an archive is looked through before anything of it is written.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tarfile
import types
import typing
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union

from keystone_action.errors import HarnessError, OutputError, ServiceError
from keystone_action.evidence.agent_run import AgentRun, LongText
from keystone_action.evidence.model import (
    Address,
    AuditEvidence,
    Database,
    Evidence,
    FileEvidence,
    ModelEvidence,
    ObservedService,
    QueryFailed,
    QueryResult,
    RecordedCall,
    RecordedRequest,
)
from keystone_action.evidence.trace import Trace
from keystone_action.evidence.tree_archive import open_regular, read_tree, write_tree
from keystone_action.evidence.writes import TableWrite
from keystone_action.files.paths import display_path
from keystone_action.files.snapshot import Change, FileState

FORMAT = 1
_DOCUMENT, _TREE, _ORIGINALS, _PACKAGES = "evidence.json", "tree.tar.gz", "originals.tar.gz", "packages.tar.gz"
_DAMAGE = (
    OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, RecursionError, tarfile.TarError, zlib.error
)  # fmt: skip
"""What reading a folder raises that is not what was written."""


def write_evidence(evidence: Evidence, folder: Path) -> tuple[str, ...]:
    """Write all of it to a new folder. Returns what of the tree is not in it, in sentences: links that lead out of the
    tree, sockets and devices, and what was too large. Blocking. Raises OutputError, also for
    what an agent made too deep or too large to be kept."""
    try:
        folder.mkdir(parents=True)
        left_out = write_tree(evidence.workspace, folder / _TREE)
        if evidence.files.originals is not None:
            write_tree(evidence.files.originals, folder / _ORIGINALS)
        if evidence.packages is not None:
            write_tree(evidence.packages, folder / _PACKAGES)
        shutil.copyfile(evidence.audit.log, folder / "audit.jsonl")
        shutil.copyfile(evidence.trace, folder / "trace.jsonl")
        document = {
            "format": FORMAT,
            "left_out": left_out,
            "cell_id": evidence.cell_id,
            "task_prompt": evidence.task_prompt,
            "params": dict(evidence.params),
            "agent": _dump_agent(evidence.agent, folder),
            "files": _dump(replace(evidence.files, originals=None))
            | {"originals": evidence.files.originals is not None},
            "audit": _dump(evidence.audit) | {"log": None},
            "observed": _dump(evidence.observed),
            "declared": _dump(evidence.declared),
            "models": _dump(None if evidence.models is None else replace(evidence.models, keys=())),
            "services": {name: _dump(_Sealed.of(service)) for name, service in evidence.services.items()},
            "broken": None if evidence.broken is None else evidence.broken.sentences,
        }
        document["digests"] = {path.name: _digest(path) for path in sorted(folder.iterdir())}
        (folder / _DOCUMENT).write_text(json.dumps(document), "ascii")
    except OSError as error:
        raise OutputError(f"the evidence can't be written to {folder}: {error.strerror or error}") from error
    except (RecursionError, TypeError, ValueError) as error:
        raise OutputError(f"the evidence can't be written to {folder}: {error}") from error
    return tuple(left_out)


def read_evidence(folder: Path, place: Path, databases: Mapping[str, Database] | None = None) -> Evidence:
    """What `write_evidence` wrote. place: an empty folder of ours for the trees. databases: handles to those that were
    restored; the others can't be asked. Blocking.

    Raises HarnessError for a folder that is damaged, or that holds what no evidence holds; nothing but files of ours is
    written then.
    """
    try:
        document = _read_document(folder)
        tree = place / "workspace"
        read_tree(folder / _TREE, tree)
        has_originals = document["files"].pop("originals")
        originals = place / "originals" if has_originals else None
        if originals is not None:
            read_tree(folder / _ORIGINALS, originals)
        packages = place / "packages" if (folder / _PACKAGES).exists() else None
        if packages is not None:
            read_tree(folder / _PACKAGES, packages)
        sealed = {name: _load(_Sealed, value) for name, value in document["services"].items()}
        known = databases or {}
        services = {name: _SealedService(name, one, known.get(name)) for name, one in sealed.items()}
        broken = _load(str | None, document["broken"])
        return Evidence(
            cell_id=_load(str, document["cell_id"]),
            task_prompt=_load(str, document["task_prompt"]),
            params=_load(Mapping[str, Any], document["params"]),
            agent=_load_agent(document["agent"], folder),
            workspace=tree,
            packages=packages,
            files=_load_files(document["files"], originals),
            audit=_load(AuditEvidence, document["audit"] | {"log": str(folder / "audit.jsonl")}),
            trace=folder / "trace.jsonl",
            observed=_load(Trace | None, document["observed"]),
            declared=_load(Trace | None, document["declared"]),
            models=_load(ModelEvidence | None, document["models"]),
            services=services,
            broken=None if broken is None else HarnessError(broken),
        )
    except _DAMAGE as error:
        raise HarnessError(f"the evidence in {folder} can't be used: {error}", help="run the cell again") from error


def _read_document(folder: Path) -> dict[str, Any]:
    path = folder / _DOCUMENT
    document = json.loads(_read_regular(path))
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{_DOCUMENT} is not of format {FORMAT}")
    digests = _load(Mapping[str, str], document["digests"])
    found = {one.name for one in folder.iterdir()} - {_DOCUMENT}
    if found != set(digests):
        raise ValueError(f"expected the files {', '.join(sorted(digests))}; found {', '.join(sorted(found))}")
    for name, digest in digests.items():
        if _digest(folder / name) != digest:
            raise ValueError(f"{display_path(name)} is not what was written")
    return document


def _read_regular(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Records and JSON. pydantic would refuse names of files that are not UTF-8.


def _dump(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _dump(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: _dump(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_dump(one) for one in value]
    if isinstance(value, frozenset | set):
        return sorted(_dump(one) for one in value)
    return str(value) if isinstance(value, Path) else value


def _load(kind: Any, value: Any) -> Any:
    """A value of this type, made of what `_dump` gave. Raises TypeError, ValueError for anything else."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _load_union(arguments, value)
    if origin is Literal:
        return _checked(value, value in arguments, kind)
    if is_dataclass(kind):
        return _load_record(kind, value)
    if origin in (tuple, frozenset):
        return origin(_load_sequence(origin, arguments, value))
    if origin is not None and issubclass(origin, Mapping):
        _checked(value, isinstance(value, dict), kind)
        return {_load(arguments[0], key): _load(arguments[1], one) for key, one in value.items()}
    if origin is list:
        return [_load(arguments[0], one) for one in _checked(value, isinstance(value, list), kind)]
    if kind is Path:
        return Path(_load(str, value))
    if kind is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return _checked(value, is_number and math.isfinite(value), kind)
    return _checked(value, type(value) is (type(None) if kind is None else kind), kind)


def _checked(value: Any, is_fine: bool, kind: Any) -> Any:
    if not is_fine:
        raise TypeError(f"expected {getattr(kind, '__name__', kind)}, found {type(value).__name__}")
    return value


def _load_union(kinds: Sequence[Any], value: Any) -> Any:
    problems = list[Exception]()
    for kind in kinds:
        try:
            return _load(kind, value)
        except (TypeError, ValueError) as error:
            problems.append(error)
    raise problems[0]


def _load_record(kind: Any, value: Any) -> Any:
    _checked(value, isinstance(value, dict), kind)
    wanted = _types_of(kind)
    if value.keys() != wanted.keys():
        raise ValueError(f"the keys of {kind.__name__} are not those that are expected")
    return kind(**{name: _load(wanted[name], one) for name, one in value.items()})


@cache
def _types_of(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


def _load_sequence(origin: Any, kinds: Sequence[Any], value: Any) -> Iterator[Any]:
    _checked(value, isinstance(value, list), origin)
    if origin is frozenset or kinds[-1] is Ellipsis:
        return (_load(kinds[0], one) for one in value)
    return (_load(kind, one) for kind, one in zip(kinds, value, strict=True))


def _load_files(document: Mapping[str, Any], originals: Path | None) -> FileEvidence:
    """Its types stand in no file that this one may name at run time."""
    states, changes = dict[str, FileState], tuple[Change, ...]
    return FileEvidence(
        before=_load(states, document["before"]),
        after=_load(states, document["after"]),
        changes=_load(changes, document["changes"]),
        all_changes=_load(changes, document["all_changes"]),
        patch=_load(str, document["patch"]),
        patch_cut=_load(tuple[str, ...], document["patch_cut"]),
        originals=originals,
        unreadable=_load(str, document["unreadable"]),
    )


def _of_turn(turn: int) -> str:
    """Its long answer's file."""
    return f"output-{turn}.txt"


_LONG_TEXTS = {"long_stdout": "stdout.txt", "long_stderr": "stderr.txt", "long_output": "output.txt"}
_TRANSCRIPT = "transcript.txt"


def _dump_agent(run: AgentRun, folder: Path) -> dict[str, Any]:
    """With the files that hold what is too long to be shown. Raises OSError."""
    turns = tuple(replace(turn, trace=None) for turn in run.turns)
    found: dict[str, Any] = _dump(replace(run, session=None, turns=turns))
    texts: list[tuple[dict[str, Any], str, LongText | None, str]] = [
        (found, name, getattr(run, name), file) for name, file in _LONG_TEXTS.items()
    ]
    for number, (turn, document) in enumerate(zip(turns, found["turns"], strict=True), 1):
        texts.append((document, "long_output", turn.long_output, _of_turn(number)))
    for document, name, text, file in texts:
        if text is not None:
            document[name]["file"] = None if text.file is None else file
            if text.file is not None:
                shutil.copyfile(text.file, folder / file)
    if run.transcript is not None:
        # An agent that printed nothing has none.
        found["transcript"] = _TRANSCRIPT
        if run.transcript.exists():
            shutil.copyfile(run.transcript, folder / _TRANSCRIPT)
        else:
            (folder / _TRANSCRIPT).touch()
    return found


def _load_agent(document: dict[str, Any], folder: Path) -> AgentRun:
    named = [
        ("transcript", document, "transcript", _TRANSCRIPT),
        *((name, document[name], "file", file) for name, file in _LONG_TEXTS.items()),
        *(
            (f"turn {number}", turn["long_output"], "file", _of_turn(number))
            for number, turn in enumerate(document["turns"], 1)
        ),
    ]
    for name, holder, key, file in named:
        if holder is not None and holder[key] is not None:
            if holder[key] != file:
                raise ValueError(f"{name} is in a file that is not {file}")
            holder[key] = str(folder / file)
    run: AgentRun = _load(AgentRun, document)
    return run


@dataclass(frozen=True, slots=True)
class _Sealed:
    """What is kept of a service."""

    for_agent: Address
    for_host: Address
    is_database: bool = False
    requests: tuple[RecordedRequest, ...] | None = None
    calls: tuple[RecordedCall, ...] | None = None
    writes: tuple[TableWrite, ...] | None = None
    not_seen: tuple[str, ...] = ()
    broken: str = ""
    """Why what the service holds is not what it held; empty where it lived on."""

    incomplete: str = ""
    """Why not all that clients sent is on record; empty where it is."""

    @classmethod
    def of(cls, service: ObservedService) -> _Sealed:
        """Blocking. Raises ServiceError where its writes can't be told."""
        writes = service.writes
        return cls(
            for_agent=service.for_agent,
            for_host=service.for_host,
            is_database=service.database is not None,
            requests=None if service.requests is None else tuple(service.requests.requests()),
            calls=None if service.calls is None else tuple(service.calls.calls()),
            writes=None if writes is None else tuple(writes.writes()),
            not_seen=() if writes is None else tuple(writes.not_seen),
            broken=_problem(service.require_unbroken),
            incomplete=_problem(service.require_whole_record),
        )


def _problem(require: Any) -> str:
    try:
        require()
    except HarnessError as error:
        return error.sentences
    return ""


@dataclass(frozen=True, slots=True)
class _SealedService:
    """An `ObservedService` that serves no more. restored: its database, where it is there again."""

    name: str
    sealed: _Sealed
    restored: Database | None = field(default=None, compare=False)

    @property
    def for_agent(self) -> Address:
        return self.sealed.for_agent

    @property
    def for_host(self) -> Address:
        return self.sealed.for_host

    @property
    def database(self) -> Database | None:
        return (self.restored or _GoneDatabase(self.name)) if self.sealed.is_database else None

    @property
    def requests(self) -> _SealedRequests | None:
        return None if self.sealed.requests is None else _SealedRequests(self.sealed.requests)

    @property
    def calls(self) -> _SealedCalls | None:
        return None if self.sealed.calls is None else _SealedCalls(self.sealed.calls)

    @property
    def writes(self) -> _SealedWrites | None:
        sealed = self.sealed
        return None if sealed.writes is None else _SealedWrites(self.name, sealed.writes, sealed.not_seen)

    def require_whole_record(self) -> None:
        if self.sealed.incomplete:
            raise OutputError(self.sealed.incomplete)

    def require_unbroken(self) -> None:
        if self.sealed.broken:
            raise ServiceError(self.sealed.broken)


@dataclass(frozen=True, slots=True)
class _GoneDatabase:
    name: str

    def query(self, sql: str, *, timeout: float, redefined: bool = False) -> QueryResult:  # noqa: ARG002
        raise QueryFailed(f"what the database {self.name} held is not in the evidence")


@dataclass(frozen=True, slots=True)
class _SealedRequests:
    recorded: tuple[RecordedRequest, ...]

    def requests(self) -> Sequence[RecordedRequest]:
        return self.recorded


@dataclass(frozen=True, slots=True)
class _SealedCalls:
    recorded: tuple[RecordedCall, ...]

    def calls(self) -> Sequence[RecordedCall]:
        return self.recorded


@dataclass(frozen=True, slots=True)
class _SealedWrites:
    name: str
    seen: tuple[TableWrite, ...]
    not_seen: tuple[str, ...]

    def writes(self) -> Sequence[TableWrite]:
        return self.seen

    def texts(self) -> Iterator[tuple[str, str]]:
        raise ServiceError(f"the values that were written into {self.name} are not in the evidence")
