"""Recording what models answer to a cell's agent, and replaying it (spec.md 5.6 "Recordings")."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio.to_thread

from keystone_action import __version__
from keystone_action.errors import HarnessError
from keystone_action.evidence.model import ReplayEvidence
from keystone_action.spec.models.agents import PresetAgent
from keystone_action.spec.plan import first_replica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from keystone_action.evidence.masking import Masker
    from keystone_action.gateway.ledger import Ledger
    from keystone_action.gateway.recordings.recorder import Recorder, Requests
    from keystone_action.gateway.recordings.recording import Recording
    from keystone_action.gateway.recordings.replay import Replay
    from keystone_action.gateway.recordings.request_key import Place
    from keystone_action.gateway.relay import AnswerSource
    from keystone_action.scoring.results import CellResult
    from keystone_action.spec.models.gateway import Gateway
    from keystone_action.spec.plan import Cell

NOTHING_RECORDED = "the recording holds no request: no model answered the agent through the gateway"
RECORD_ADVICE = "Record with `--gateway record`, where there is a key, and commit the folder."


def why_without_history(gateway: Gateway | None) -> str:
    """Why a copied `.git` has one commit in a cell with this gateway: what is recorded and replayed has to see the
    same."""
    mode = "live" if gateway is None else gateway.mode
    return "" if mode == "live" else f"the gateway's mode is {mode}"


class CellRecording:
    """Of one cell: the source of its answers, and what came of it. gateway: as the spec asks for it. source: for the
    gateway, made of the providers. is_changed: the change that is tested touched what is replayed, or may have.
    uncompared: why that is not known; empty when it is."""

    def __init__(self, cell: Cell, gateway: Gateway) -> None:
        self._cell, self._gateway = cell, gateway
        self._requests = _requests(cell, gateway)
        self.recorder: Recorder | None = None
        self.replay: Replay | None = None
        self.is_changed = False
        self.uncompared = ""

    async def open(self) -> None:
        """Read what is to be replayed; look whether what is recorded can be kept. Raises HarnessError."""
        if self._gateway.mode == "record":
            await anyio.to_thread.run_sync(_require_place, self._cell)
            return
        from keystone_action.gateway.recordings.recording import recording_path
        from keystone_action.gateway.recordings.replay import Replay

        cell, gateway = self._cell, self._gateway
        recording, path = await anyio.to_thread.run_sync(_read, cell, gateway.ignore)
        names = {path.name, recording_path(path.parent, cell.id).name}  # the cell's own may have been deleted
        self.uncompared = cell.loaded.recordings_uncompared
        self.is_changed = bool(self.uncompared) or not names.isdisjoint(cell.loaded.changed_recordings)
        self.replay = Replay(recording, gateway.match, self._requests, _shown(cell, path))

    @property
    def source(self) -> Callable[[AnswerSource], AnswerSource]:
        """What answers, made of the providers."""

        def made(providers: AnswerSource) -> AnswerSource:
            if self.replay is not None:
                return self.replay
            from keystone_action.gateway.recordings.recorder import Recorder

            self.recorder = Recorder(providers, self._requests)
            return self.recorder

        return made

    def begin(self, values: Mapping[str, str]) -> None:
        """The agent starts. values: what differs from run to run, by its name in recordings."""
        from keystone_action.gateway.recordings.names import Names

        self._requests.begin(Names(values))

    def settle(self, ledger: Ledger) -> tuple[str, ...]:
        """The agent has ended; what a report should say. Raises HarnessError for requests that no recording fits, or
        that can't be recorded."""
        if self.recorder is not None and self.recorder.problem:
            raise HarnessError(f"the requests can't be recorded: {self.recorder.problem}")
        if self.recorder is not None:
            return tuple(_record_notices(self.recorder, ledger))
        if self.replay is None:
            return ()
        if self.replay.problem:
            raise HarnessError(self.replay.problem)
        if self.replay.miss:
            raise HarnessError(self.replay.miss, help="record anew with --gateway record")
        return tuple(_replay_notices(self.replay))

    def fit(self) -> ReplayEvidence | None:
        """How the recording has fitted so far; None where nothing is replayed."""
        if self.replay is None:
            return None
        return ReplayEvidence(
            recorded_at=self.replay.date,
            answered=self.replay.answered,
            left_over=self.replay.left_over,
            stale=self.replay.stale,
            misses=bool(self.replay.miss or self.replay.problem),
            is_changed=self.is_changed,
            uncompared=self.uncompared,
        )

    async def keep(self, result: CellResult, ledger: Ledger, apis: Mapping[str, str], masker: Masker) -> None:
        """The cell was graded: a recording of it replaces the one that there was. apis: those of the
        gateway's providers, by name. Raises HarnessError."""
        if self.recorder is None or result.verdict == "error":
            return
        if why := ledger.provider_failure():
            advice = "a replay would miss that request; what was recorded before is unchanged"
            raise HarnessError(f"nothing was recorded: {why}", help=advice)
        await anyio.to_thread.run_sync(self._write, self.recorder, apis, masker)

    def _write(self, recorder: Recorder, apis: Mapping[str, str], masker: Masker) -> None:
        from keystone_action.gateway.recordings.files import write_recording
        from keystone_action.gateway.recordings.recording import Recording

        loaded = self._cell.loaded
        recording = Recording(
            entries=recorder.entries,
            spec=loaded.spec.id,
            cell=self._cell.id,
            product=__version__,
            date=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            providers=apis,
        )
        write_recording(_path_to_write(self._cell), recording, masker, below=loaded.code_directory)


def _record_notices(recorder: Recorder, ledger: Ledger) -> Iterator[str]:
    if not recorder.entries:
        yield NOTHING_RECORDED
    failed = sum(bool(one.failure) for one in ledger.exchanges)
    if failed and recorder.entries:
        yield f"requests that the provider failed, so that a replay has no answer to them: {failed:,}"


def _replay_notices(replay: Replay) -> Iterator[str]:
    if replay.stale:
        yield f"the replay is stale: {'; '.join(replay.stale)}"
    if not replay.answered:
        holds = "holds no request, and" if not replay.left_over else "was not used:"
        yield f"the recording {holds} the agent asked no model through the gateway"
    elif replay.left_over:
        yield f"recorded answers left over, since the agent did not ask for them: {replay.left_over:,}"
    if replay.estimates:
        yield f"counts of tokens and lists of models that were answered by estimates: {replay.estimates:,}"


def _requests(cell: Cell, gateway: Gateway) -> Requests:
    from keystone_action.gateway.recordings.recorder import Requests
    from keystone_action.gateway.recordings.request_key import Sameness

    agent = cell.agent
    varies: Mapping[Place, tuple[str, ...]] = {}
    ids: tuple[str, ...] = ()
    if isinstance(agent, PresetAgent):
        from keystone_action.agents.presets.preset import load_preset

        preset = load_preset(agent.type)
        varies, ids = preset.varies, preset.ids
    return Requests(Sameness(varies, tuple(gateway.ignore), ids))


def _path_to_write(cell: Cell) -> Path:
    from keystone_action.gateway.recordings.recording import recording_path

    return recording_path(cell.loaded.code_directory / cell.loaded.recordings, cell.id)


def _require_place(cell: Cell) -> None:
    from keystone_action.gateway.recordings.files import require_place

    require_place(_path_to_write(cell), cell.loaded.code_directory)


def _read(cell: Cell, ignore: Sequence[str]) -> tuple[Recording, Path]:
    """The cell's own recording, else that of the first replica. Raises HarnessError."""
    from keystone_action.gateway.recordings.files import read_recording
    from keystone_action.gateway.recordings.recording import recording_path

    loaded, directory = cell.loaded, cell.loaded.directory
    for cell_id in dict.fromkeys([cell.id, first_replica(cell.id)]):
        path = recording_path(directory / loaded.recordings, cell_id)
        with contextlib.suppress(FileNotFoundError):
            recording = read_recording(path, spec_id=loaded.spec.id, ignore=ignore, below=directory)
            if recording.cell != cell_id:
                found = f"{_shown(cell, path)}: expected a recording of the cell {cell_id}, found one of another"
                raise HarnessError(found, help=f"{RECORD_ADVICE} `keystone recordings check` tells which it is of.")
            return recording, path
    shown = f"{loaded.recordings}/{cell.id}.jsonl"
    at_base = " at the base commit, where spec-from: base looks" if directory != loaded.code_directory else ""
    raise HarnessError(f"there is no recording to replay: {shown} does not exist{at_base}", help=RECORD_ADVICE)


def _shown(cell: Cell, path: Path) -> str:
    return f"{cell.loaded.recordings}/{path.name}"
