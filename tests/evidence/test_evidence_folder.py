"""Evidence in a folder, and back: the same in each of its parts, and nothing else than evidence is taken for it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.errors import HarnessError, OutputError, ServiceError
from keystone_action.evidence.agent_run import AgentRun, LongText
from keystone_action.evidence.folder import read_evidence, write_evidence
from keystone_action.evidence.model import (
    Address,
    AuditEvidence,
    Evidence,
    FileEvidence,
    ModelEvidence,
    ObservedCall,
    ProviderFaults,
    QueryFailed,
    RecordedCall,
    RecordedRequest,
    ReplayEvidence,
)
from keystone_action.evidence.trace import Message, Permission, ToolCall, Trace, Usage
from keystone_action.evidence.writes import TableWrite
from keystone_action.files.snapshot import compare_entries, snapshot

TEXT = st.text(max_size=20)
COUNT = st.integers(0, 10**12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
CALL = st.builds(ToolCall, TEXT, TEXT, TEXT, st.sampled_from(["read", "execute", "other"]), st.none() | OBJECT, ts=TEXT)
MESSAGE = st.builds(Message, TEXT, TEXT, TEXT)
TRACE = st.builds(
    Trace,
    source=TEXT,
    tool_calls=st.none() | st.lists(CALL, max_size=2).map(tuple),
    messages=st.lists(MESSAGE, max_size=2).map(tuple),
    permissions=st.none() | st.lists(st.builds(Permission, TEXT, st.none() | st.booleans()), max_size=2).map(tuple),
    usage=st.builds(Usage, st.none() | COUNT, st.none() | COUNT, st.none() | st.floats(0, 9)),
    timeline=st.lists(MESSAGE | CALL, max_size=3).map(tuple),
    failure=TEXT,
)
RUN = st.builds(
    AgentRun,
    exit_code=st.none() | st.integers(0, 255),
    timed_out=st.booleans(),
    stopped=st.none() | TEXT,
    duration_s=st.floats(0, 1e6),
    output=TEXT,
    stdout=TEXT,
    stdout_bytes=COUNT,
    tool_calls=st.none() | st.lists(OBJECT, max_size=2).map(tuple),
    reported=OBJECT,
    processes=st.lists(OBJECT, max_size=2).map(tuple),
)
MODELS = st.builds(
    ModelEvidence,
    answered=st.booleans(),
    cost_usd=st.none() | st.floats(0, 9),
    calls=st.lists(st.builds(ObservedCall, TEXT, st.none() | OBJECT), max_size=2).map(tuple),
    faults=st.builds(ProviderFaults, TEXT, TEXT, st.booleans(), st.booleans()),
    replay=st.none() | st.builds(ReplayEvidence, recorded_at=TEXT, stale=st.lists(TEXT, max_size=2).map(tuple)),
    leaks=st.lists(st.tuples(COUNT, TEXT), max_size=2).map(tuple),
)
REQUEST = st.builds(
    RecordedRequest, TEXT, TEXT, TEXT, TEXT, st.dictionaries(TEXT, TEXT | st.lists(TEXT, max_size=2), max_size=2),
    st.just({}), TEXT, COUNT, COUNT, COUNT, TEXT, TEXT,
)  # fmt: skip
MCP_CALL = st.builds(RecordedCall, TEXT, TEXT, JSON, TEXT, st.booleans(), TEXT)
WRITE = st.builds(TableWrite, TEXT, TEXT, TEXT, st.none() | COUNT, st.sampled_from(["log", "comparison"]))
NAME = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)
TREE = st.dictionaries(
    NAME, st.binary(max_size=50) | st.dictionaries(NAME, st.binary(max_size=50), max_size=3), max_size=4
)


@dataclasses.dataclass
class Service:
    """A service of a cell, in memory. broken: what it says of itself."""

    for_agent: Address
    recorded: tuple[RecordedRequest, ...] | None = None
    written: tuple[TableWrite, ...] | None = None
    broken: str = ""
    called: tuple[RecordedCall, ...] | None = None
    not_seen: tuple[str, ...] = ("triggers",)

    @property
    def for_host(self) -> Address:
        return Address("host")

    @property
    def database(self) -> Any:
        return None if self.written is None else self

    @property
    def requests(self) -> Any:
        return None if self.recorded is None else Log(self.recorded)

    @property
    def calls(self) -> Any:
        return None if self.called is None else Calls(self.called)

    @property
    def writes(self) -> Any:
        return None if self.written is None else Writes(self.written, self.not_seen)

    def require_whole_record(self) -> None:
        if self.broken:
            raise OutputError(self.broken)

    def require_unbroken(self) -> None:
        if self.broken:
            raise ServiceError(self.broken)


@dataclasses.dataclass
class Log:
    recorded: tuple[RecordedRequest, ...]

    def requests(self) -> tuple[RecordedRequest, ...]:
        return self.recorded


@dataclasses.dataclass
class Calls:
    recorded: tuple[RecordedCall, ...]

    def calls(self) -> tuple[RecordedCall, ...]:
        return self.recorded


@dataclasses.dataclass
class Writes:
    seen: tuple[TableWrite, ...]
    not_seen: tuple[str, ...]

    def writes(self) -> tuple[TableWrite, ...]:
        return self.seen

    def texts(self) -> Iterator[tuple[str, str]]:
        yield "t", "x"


SERVICE = st.builds(
    Service,
    st.builds(Address, TEXT, st.none() | st.integers(1, 65535), TEXT),
    st.none() | st.lists(REQUEST, max_size=2).map(tuple),
    st.none() | st.lists(WRITE, max_size=2).map(tuple),
    TEXT,
    st.none() | st.lists(MCP_CALL, max_size=2).map(tuple),
)


def lay_out(tree: dict[str, Any], place: Path) -> None:
    place.mkdir()
    for name, content in tree.items():
        if isinstance(content, dict):
            lay_out(content, place / name)
        else:
            (place / name).write_bytes(content)


def evidence_in(place: Path, **fields: Any) -> Evidence:
    """Evidence of an agent that left `workspace` in this place, and changed all of it."""
    workspace = place / "workspace"
    workspace.mkdir(exist_ok=True)
    audit, trace = place / "audit.jsonl", place / "trace.jsonl"
    audit.write_text('{"ts": "", "type": "x", "details": {}}\n')
    trace.write_text("a trace\n")
    after = snapshot(workspace)
    files = FileEvidence(after=after, changes=compare_entries({}, after), patch="+caf\udce9\n", originals=None)
    values: dict[str, Any] = {
        "cell_id": "spec.r0",
        "task_prompt": "Do it.",
        "params": {"model": "small"},
        "agent": AgentRun(exit_code=0),
        "files": files,
        "audit": AuditEvidence(log=audit, agent_start=3, own_addresses=frozenset({("10.0.0.1", 80), ("a", 1)})),
    }
    return Evidence(workspace=workspace, trace=trace, **{**values, **fields})


def round_trip(evidence: Evidence, place: Path) -> Evidence:
    write_evidence(evidence, place / "folder")
    (place / "read").mkdir()
    return read_evidence(place / "folder", place / "read")


@contextlib.contextmanager
def own_place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)


@given(RUN, TRACE, st.none() | TRACE, st.none() | MODELS, st.dictionaries(TEXT, SERVICE, max_size=2), OBJECT, TREE)
def test_what_is_written_is_read_back_whole(
    run: AgentRun,
    observed: Trace,
    declared: Trace | None,
    models: ModelEvidence | None,
    services: dict[str, Service],
    params: dict[str, Any],
    tree: dict[str, Any],
) -> None:
    with own_place() as place:
        lay_out(tree, place / "workspace")
        fields = {"agent": run, "observed": observed, "declared": declared, "models": models, "services": services}
        given_one = evidence_in(place, params=params, **fields)
        found = round_trip(given_one, place)
        for name in ("cell_id", "task_prompt", "params", "agent", "observed", "declared", "models", "broken"):
            assert getattr(found, name) == getattr(given_one, name), name
        files = dataclasses.replace(given_one.files, before={}, after=dict(given_one.files.after))
        assert found.files == files
        assert dict(snapshot(found.workspace)) == dict(given_one.files.after)
        assert dataclasses.replace(found.audit, log=given_one.audit.log) == given_one.audit
        assert found.audit.log.read_bytes() == given_one.audit.log.read_bytes()
        assert found.trace.read_bytes() == given_one.trace.read_bytes()
        assert found.services.keys() == services.keys()
        for name, service in services.items():
            same_service(found.services[name], service)


def same_service(found: Any, service: Service) -> None:
    assert (found.for_agent, found.for_host) == (service.for_agent, service.for_host)
    assert (found.requests and found.requests.requests()) == service.recorded or service.recorded == ()
    if service.written is None:
        assert (found.database, found.writes) == (None, None)
    else:
        assert (found.writes.writes(), found.writes.not_seen) == (service.written, service.not_seen)
        with pytest.raises(QueryFailed, match="is not in the evidence"):
            found.database.query("SELECT 1", timeout=1.0)
    for ask, error in ((found.require_unbroken, ServiceError), (found.require_whole_record, OutputError)):
        with pytest.raises(error) if service.broken else contextlib.nullcontext():
            ask()


def test_long_texts_the_originals_and_what_broke_come_along(tmp_path: Path) -> None:
    said, transcript, originals = tmp_path / "said", tmp_path / "transcript", tmp_path / "before"
    said.write_bytes(b"all of it")
    transcript.write_bytes(b"{}")
    originals.mkdir()
    (originals / "a.txt").write_text("a")
    run = AgentRun(stdout="all…", long_stdout=LongText(9, said, 100), long_output=LongText(9, None, 100))
    run = dataclasses.replace(run, transcript=transcript)
    broken = ServiceError("service db went away", help="Look at its log.")
    given_one = evidence_in(tmp_path, agent=run, broken=broken)
    files = dataclasses.replace(given_one.files, originals=originals)
    found = round_trip(dataclasses.replace(given_one, files=files), tmp_path)
    assert found.agent.whole_stdout() == "all of it"
    assert found.agent.long_output == run.long_output
    assert found.agent.transcript is not None
    assert found.agent.transcript.read_bytes() == b"{}"
    assert found.files.originals is not None
    assert (found.files.originals / "a.txt").read_text() == "a"
    assert found.broken is not None
    assert found.broken.sentences == broken.sentences


def test_the_session_of_a_conversation_is_written_to_no_file(tmp_path: Path) -> None:
    run = AgentRun(output="done", session={"id": "the-id-of-the-session"})
    found = round_trip(evidence_in(tmp_path, agent=run), tmp_path)
    assert (found.agent.output, found.agent.session) == ("done", None)
    assert all(b"the-id-of-the-session" not in path.read_bytes() for path in (tmp_path / "folder").iterdir())


def test_neither_secrets_nor_keys_are_written(tmp_path: Path) -> None:
    models = ModelEvidence(keys=("sk-hunter2",))
    round_trip(evidence_in(tmp_path, secrets=("hunter2",), models=models), tmp_path)
    assert all(b"hunter2" not in path.read_bytes() for path in (tmp_path / "folder").iterdir())


def test_a_hostile_archive_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Its digests are made right first: an enemy would. test_tree_archive.py has what such an archive may hold."""
    from keystone_action.evidence import folder as module

    write_evidence(evidence_in(tmp_path), tmp_path / "folder")
    with tarfile.open(tmp_path / "folder" / "tree.tar.gz", "w:gz", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("../planted"))
    path = tmp_path / "folder" / "evidence.json"
    document = json.loads(path.read_text())
    document["digests"] = {name: module._digest(tmp_path / "folder" / name) for name in document["digests"]}
    path.write_text(json.dumps(document))
    (tmp_path / "read").mkdir()
    with pytest.raises(HarnessError, match="path leads elsewhere"):
        read_evidence(tmp_path / "folder", tmp_path / "read")
    assert list((tmp_path / "read").iterdir()) == []


def change(path: list[str | int], value: Any) -> Callable[[Path], None]:
    """Puts a value into the document."""

    def put(folder: Path) -> None:
        file = folder / "evidence.json"
        document: Any = json.loads(file.read_text())
        place = document
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        file.write_text(json.dumps(document))

    return put


def link_to_elsewhere(folder: Path) -> None:
    (folder / "audit.jsonl").unlink()
    (folder / "audit.jsonl").symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "evidence.json").write_text("{}"), "is not of format"),
        (lambda folder: (folder / "evidence.json").write_text("[" * 100_000), "can't be used"),
        (lambda folder: (folder / "evidence.json").unlink(), "No such file"),
        (lambda folder: (folder / "trace.jsonl").write_text("another"), "trace.jsonl is not what was written"),
        (lambda folder: (folder / "planted").touch(), "found .*planted"),
        (lambda folder: (folder / "audit.jsonl").unlink(), "expected the files"),
        (link_to_elsewhere, "symbolic links|is not a regular file"),
        (lambda folder: (folder / "tree.tar.gz").write_bytes(b"none"), "tree.tar.gz is not what was written"),
        (change(["format"], 2), "is not of format"),
        (change(["agent", "exit_code"], "0"), "expected"),
        (change(["agent", "more"], 1), "the keys of AgentRun"),
        (change(["agent", "transcript"], "/etc/passwd"), "transcript is in a file"),
        (change(["agent", "long_stdout"], {"size": 1, "limit": 1, "file": "../../x"}), "long_stdout is in a file"),
        (change(["files", "after"], {"a": {"kind": "door"}}), "the keys of FileState"),
        (change(["services"], []), "can't be used"),
        (change(["audit", "own_addresses"], [["a"]]), "can't be used"),
        (change(["models"], {"answered": True}), "the keys of ModelEvidence"),
        (change(["agent", "duration_s"], float("nan")), "expected float"),
    ],
)
def test_a_folder_that_was_changed_is_refused(spoil: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    write_evidence(evidence_in(tmp_path), tmp_path / "folder")
    spoil(tmp_path / "folder")
    (tmp_path / "read").mkdir()
    with pytest.raises(HarnessError, match=said):
        read_evidence(tmp_path / "folder", tmp_path / "read")


def test_a_folder_that_is_there_already_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="can't be written"):
        write_evidence(evidence_in(tmp_path), tmp_path / "folder")


def test_what_an_agent_made_too_deep_is_a_sentence(tmp_path: Path) -> None:
    evidence, deep = evidence_in(tmp_path), list[Any]()
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(OutputError, match="the evidence can't be written"):
        write_evidence(dataclasses.replace(evidence, params={"deep": deep}), tmp_path / "folder")
