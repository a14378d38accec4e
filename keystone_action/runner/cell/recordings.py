"""Recording what models answer to a cell's agent, and replaying it (spec.md 5.6 "Recordings")."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio.to_thread

from keystone_action import __version__
from keystone_action.errors import HarnessError
from keystone_action.plan import first_replica
from keystone_action.spec.models.agents import PresetAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from keystone_action.gateway.recordings.recorder import Recorder
    from keystone_action.gateway.recordings.recording import Recording
    from keystone_action.gateway.recordings.replay import Replay
    from keystone_action.gateway.recordings.requests import Requests
    from keystone_action.gateway.relay import Source
    from keystone_action.runner.cell.under_way import CellUnderWay
    from keystone_action.scoring.results import CellResult

NOTHING_RECORDED = "the recording holds no request: no model answered the agent through the gateway"
RECORD_ADVICE = "Record with `--gateway record`, where there is a key, and commit the folder."


def why_without_history(under_way: CellUnderWay) -> str:
    """Why a copied `.git` has one commit in this cell: what is recorded and replayed has to see the same."""
    gateway = under_way.gateway_wanted
    mode = "live" if gateway is None else gateway.mode
    return "" if mode == "live" else f"the gateway's mode is {mode}"


class CellRecording:
    """Of one cell: the source of its answers, and what came of it. source: for the gateway, made of the providers.
    is_changed: the change that is tested touched what is replayed."""

    def __init__(self, under_way: CellUnderWay, mode: str) -> None:
        """Raises HarnessError for a recording that can't be replayed."""
        self._under_way, self._mode = under_way, mode
        self._requests = _requests(under_way)
        self.recorder: Recorder | None = None
        self.replay: Replay | None = None
        self.is_changed = False

    async def open(self) -> None:
        """Read what is to be replayed; look whether what is recorded can be kept. Raises HarnessError."""
        if self._mode == "record":
            await anyio.to_thread.run_sync(_require_place, self._under_way)
            return
        from keystone_action.gateway.recordings.recording import recording_path
        from keystone_action.gateway.recordings.replay import Replay

        under_way = self._under_way
        gateway = under_way.gateway_wanted
        assert gateway is not None
        recording, path = await anyio.to_thread.run_sync(_read, under_way)
        names = {path.name, recording_path(path.parent, under_way.cell.id).name}  # the cell's own may have been deleted
        self.is_changed = not names.isdisjoint(under_way.loaded.changed_recordings)
        self.replay = Replay(recording, gateway.match, self._requests, _shown(under_way, path))

    @property
    def source(self) -> Callable[[Source], Source]:
        """What answers, made of the providers."""

        def made(providers: Source) -> Source:
            if self.replay is not None:
                return self.replay
            from keystone_action.gateway.recordings.recorder import Recorder

            self.recorder = Recorder(providers, self._requests)
            return self.recorder

        return made

    def begin(self) -> None:
        """The agent starts: what differs from run to run is known."""
        from keystone_action.gateway.recordings.names import Names

        self._requests.begin(Names(dict(_values(self._under_way))))

    def settle(self) -> None:
        """The agent has ended. Raises HarnessError for requests that no recording fits, or that can't be recorded."""
        if self.recorder is not None and self.recorder.problem:
            raise HarnessError(f"the requests can't be recorded: {self.recorder.problem}")
        if self.recorder is not None:
            self._under_way.notices += self._record_notices(self.recorder)
        if self.replay is None:
            return
        if self.replay.problem:
            raise HarnessError(self.replay.problem)
        if self.replay.miss:
            raise HarnessError(self.replay.miss, help="record anew with --gateway record")
        self._under_way.notices += self._replay_notices(self.replay)

    def _record_notices(self, recorder: Recorder) -> Iterator[str]:
        gateway = self._under_way.gateway
        if not recorder.entries:
            yield NOTHING_RECORDED
        failed = 0 if gateway is None else sum(bool(one.failure) for one in gateway.ledger.exchanges)
        if failed and recorder.entries:
            yield f"requests that the provider failed, so that a replay has no answer to them: {failed:,}"

    def _replay_notices(self, replay: Replay) -> Iterator[str]:
        if replay.stale:
            yield f"the replay is stale: {'; '.join(replay.stale)}"
        if not replay.answered and not replay.left_over:
            yield "the recording holds no request, and the agent asked no model through the gateway"
        if replay.left_over:
            yield f"recorded answers left over, since the agent did not ask for them: {replay.left_over:,}"
        if replay.estimates:
            yield f"counts of tokens and lists of models that were answered by estimates: {replay.estimates:,}"

    async def keep(self, result: CellResult) -> None:
        """The cell was graded: a recording of it replaces the one that there was. Raises HarnessError."""
        if self.recorder is None or result.verdict == "error":
            return
        gateway = self._under_way.gateway
        assert gateway is not None
        if why := gateway.ledger.provider_failure():
            advice = "a replay would miss that request; what was recorded before is unchanged"
            raise HarnessError(f"nothing was recorded: {why}", help=advice)
        await anyio.to_thread.run_sync(self._write, self.recorder)

    def _write(self, recorder: Recorder) -> None:
        from keystone_action.gateway.recordings.recording import Recording
        from keystone_action.gateway.recordings.writing import write_recording

        under_way = self._under_way
        gateway = under_way.gateway
        assert gateway is not None
        recording = Recording(
            entries=recorder.entries,
            spec=under_way.spec.id,
            cell=under_way.cell.id,
            product=__version__,
            date=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            providers=gateway.configuration.apis,
        )
        write_recording(
            _path_to_write(under_way), recording, under_way.run.masker, below=under_way.loaded.code_directory
        )


def _requests(under_way: CellUnderWay) -> Requests:
    from keystone_action.gateway.recordings.request_key import Sameness
    from keystone_action.gateway.recordings.requests import Requests

    gateway, agent = under_way.gateway_wanted, under_way.cell.agent
    assert gateway is not None
    varies: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    if isinstance(agent, PresetAgent):
        from keystone_action.agents.presets.preset import load_preset

        preset = load_preset(agent.type)
        varies, ids = preset.varies, preset.ids
    return Requests(Sameness(varies, tuple(gateway.ignore), ids))


def _path_to_write(under_way: CellUnderWay) -> Path:
    from keystone_action.gateway.recordings.recording import recording_path

    return recording_path(under_way.loaded.code_directory / under_way.loaded.recordings, under_way.cell.id)


def _require_place(under_way: CellUnderWay) -> None:
    from keystone_action.gateway.recordings.writing import require_place

    require_place(_path_to_write(under_way), under_way.loaded.code_directory)


def _read(under_way: CellUnderWay) -> tuple[Recording, Path]:
    """The cell's own recording, else that of the first replica. Raises HarnessError."""
    from keystone_action.gateway.recordings.reading import read_recording
    from keystone_action.gateway.recordings.recording import recording_path

    directory, gateway, cell = under_way.loaded.directory, under_way.gateway_wanted, under_way.cell
    assert gateway is not None
    for cell_id in dict.fromkeys([cell.id, first_replica(cell.id)]):
        path = recording_path(directory / under_way.loaded.recordings, cell_id)
        with contextlib.suppress(FileNotFoundError):
            spec_id = cell.loaded.spec.id
            recording = read_recording(path, spec_id=spec_id, ignore=gateway.ignore, below=directory)
            if recording.cell != cell_id:
                found = f"{_shown(under_way, path)}: expected a recording of the cell {cell_id}, found one of another"
                raise HarnessError(found, help=f"{RECORD_ADVICE} `keystone recordings check` tells which it is of.")
            return recording, path
    shown = f"{under_way.loaded.recordings}/{cell.id}.jsonl"
    at_base = " at the base commit, where spec-from: base looks" if directory != under_way.loaded.code_directory else ""
    raise HarnessError(f"there is no recording to replay: {shown} does not exist{at_base}", help=RECORD_ADVICE)


def _shown(under_way: CellUnderWay, path: Path) -> str:
    return f"{under_way.loaded.recordings}/{path.name}"


def _values(under_way: CellUnderWay) -> Iterator[tuple[str, str]]:
    """What differs from run to run, by its name in recordings."""
    sandbox, roots = under_way.sandbox, under_way.roots
    yield "workspace", sandbox.workspace_inside
    yield "home", sandbox.environment["HOME"]
    yield "tmp", sandbox.environment["TMPDIR"]
    yield "folder", str(roots.area)
    yield "cell", under_way.cell.id
    for name, place in under_way.places.items():
        for key, value in place.for_agent.as_mapping().items():
            yield f"service.{name}.{key}", str(value)
    if under_way.gateway is not None:
        for name, address in under_way.gateway.addresses.items():
            yield f"gateway.{name}.url", address.url
            yield "gateway.key", address.key
    for name, value in under_way.secrets.values.items():
        yield f"secret.{name}", value
    yield from _commit(roots.workspace)


def _commit(workspace: Path) -> Iterator[tuple[str, str]]:
    from keystone_action.files.git import commands as git

    if not (workspace / ".git").is_dir() or not git.available():
        return
    try:
        commit = git.run("rev-parse", "HEAD", directory=workspace).decode("ascii", "replace").strip()
    except git.GitFailed:
        return
    yield "commit", commit
