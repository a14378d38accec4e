"""One container of a service: made, watched until it is ready, asked what it printed, removed with its volumes.

What it printed is found after the run as `<service>[-<cell id>].log`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.engine import archives
from keystone_action.engine.calls import (
    REMOVAL_SECONDS,
    ask_engine,
    ask_here,
    ask_within,
    engine_errors,
    unless_refused,
)
from keystone_action.engine.container import ServicePlan, create_service
from keystone_action.engine.networks import ContainerNetwork, address_in, network_name
from keystone_action.engine.records import labels
from keystone_action.engine.streams import FollowedOutput
from keystone_action.errors import ServiceError
from keystone_action.services.server_process import SERVER_TAIL_CHARACTERS, signal_told, without_statements
from keystone_action.system.command import CAPTURE_HEAD, CAPTURE_TAIL, Capture, CommandLimits, KeptWhole

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.records import Container, ContainerState

ENGINE_KEEPS = 4 << 20
"""Bytes of each of the two files in which the engine keeps a container's log: of a longer one it has the end only."""
_OF_A_LINE = 74
_LONGEST_CELL = 180
_ESCAPED = bytes(range(32)) + b'"\\<>&' + bytes(range(128, 256))
_LONGEST_ESCAPE = 6


@dataclass(frozen=True, slots=True)
class KeptLogs:
    """The files in which the output of containers is kept."""

    directory: Path
    """Where they go; made when the first one is written."""
    mask: Callable[[str], str]
    """Takes secrets out of a text."""

    def keep(self, service: str, cell: str, printed: bytes) -> None:
        """Write what one container printed; an earlier container's file of the same name stays, and this one gets a
        number. Nothing is written of one that printed nothing. Never raises. Blocking."""
        if printed:
            self._write(service, cell, self.mask(_bound(printed).text()) + _loss(printed))

    def lack(self, service: str, cell: str, problem: str) -> None:
        """Write why a container's log could not be had. Never raises. Blocking."""
        self._write(service, cell, f"[what this container printed could not be had: {self.mask(problem)}]\n")

    def _write(self, service: str, cell: str, text: str) -> None:
        # A full disk must not keep us from removing the container.
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            stem = f"{service}-{_short(cell)}" if cell else service
            for number in itertools.count(1):
                path = self.directory / (f"{stem}.log" if number == 1 else f"{stem}.{number}.log")
                with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8", errors="replace") as file:
                    file.write(text)
                    return


def _short(cell: str) -> str:
    """A cell's id, which may be as long as a file name, with room for a service's before it."""
    if len(cell) <= _LONGEST_CELL:
        return cell
    return f"{cell[: _LONGEST_CELL - 9]}-{hashlib.sha256(cell.encode()).hexdigest()[:8]}"


def _bound(printed: bytes) -> Capture:
    if len(printed) <= CAPTURE_HEAD + CAPTURE_TAIL:
        return Capture(printed, b"", len(printed))
    return Capture(printed[:CAPTURE_HEAD], printed[-CAPTURE_TAIL:], len(printed))


def _loss(printed: bytes) -> str:
    """Whether the engine may have thrown away what came first. It does not say so; it does once a file is full of
    lines as it writes them, in JSON."""
    special = len(printed) - len(printed.translate(None, _ESCAPED))
    written = len(printed) + special * (_LONGEST_ESCAPE - 1) + printed.count(b"\n") * _OF_A_LINE
    if written < ENGINE_KEEPS:
        return ""
    return f"\n[the engine keeps the last {ENGINE_KEEPS >> 20} MiB of a log; what came before may be missing]\n"


_TAIL_LINES = 200
_POLL_SECONDS = 0.03
_STATE_SECONDS = 0.25
_LOG_SECONDS = 1.0
_OUTPUT_SECONDS = 60.0
"""Until what a container printed that was killed is here: it may be some GiB."""
_MEMORY_ADVICE = "Give it less to do, or the machine that the engine runs on more memory."
_END_ADVICE = "Mostly its output says why; `env` and `command` of the service say how it is started."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContainerPlan:
    """What a service's container is made of."""

    service: str
    """The service's name."""
    image: str
    env: Mapping[str, str] = field(default_factory=dict)
    is_database: bool = False
    """Whether what it prints can have statements in it, which are not shown."""
    command: str | Sequence[str] | None = None
    """A text is split as a shell would, a list is taken exactly; None is the image's own."""
    limits: CommandLimits = field(default_factory=CommandLimits)
    output_to: KeptWhole | None = None
    """A file of ours that gets all that it prints: the engine keeps the end only."""
    folder: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What its programs find in this folder of the root, by name; all may read it."""


class ServiceContainer:
    """A container of ours. No host port is published: what may reach it is in its networks."""

    def __init__(
        self, client: EngineClient, run_id: str, plan: ServiceContainerPlan, *, kept_logs: KeptLogs | None = None
    ) -> None:
        """kept_logs: gets what it printed when it is removed."""
        self._client = client
        self._run_id = run_id
        self._kept_logs = kept_logs
        self._cell = ""
        self.plan = plan
        self._id: str | None = None
        self._described: Container = {}
        """What the engine said of it last."""
        self._last_printed = ""
        self._followed: FollowedOutput | None = None
        self.address = ""

    @property
    def id(self) -> str:
        """The engine's id. Only after `start`."""
        assert self._id is not None
        return self._id

    async def start(self, network: ContainerNetwork, *, cell: str = "") -> None:
        """Make and start it in a network, under the service's name. Raises ServiceError."""
        import anyio
        import anyio.to_thread

        self._cell = cell
        marks = labels(self._run_id, "service", service=self.plan.service, cell=cell)
        problem = f"service {self.plan.service} can't be started"
        try:
            self._id = await ask_engine(lambda: self._create(network, marks), problem)
            if self.plan.files:
                await anyio.to_thread.run_sync(self._put_files)
            await ask_engine(self._start, problem)
            await self._refresh()
        except ServiceError as error:
            with anyio.CancelScope(shield=True):
                await self.remove()
            raise _with_advice(error, self.plan) from None
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.remove()
            raise
        # One that has ended by now has no address; the caller that waits for it says how it ended.
        joined = self._described["NetworkSettings"]["Networks"].get(network.name) or {}
        self.address = str(joined.get("IPAddress") or "")

    def _put_files(self) -> None:
        folder, files = self.plan.folder, self.plan.files.items()
        pieces = [piece for name, data in files for piece in archives.small_file(f"{folder}/{name}", data, 0o644)]
        archives.put_archive(self._client, self.id, [*archives.directories([folder]), *pieces])

    def _start(self) -> None:
        if self.plan.output_to is not None:
            self._followed = FollowedOutput(self._client.attach_streams(self.id), self.plan.output_to)
        self._client.start(self.id)

    def _create(self, network: ContainerNetwork, marks: Mapping[str, str]) -> str:
        plan = ServicePlan(
            name=network_name(self._run_id, f"{self.plan.service}-{secrets.token_hex(4)}"),
            image=self.plan.image,
            command=self.plan.command,
            environment=self.plan.env,
            labels=marks,
            network=network.name,
            aliases=[self.plan.service, *network.aliases.get(self.plan.service, ())],
            extra_hosts=network.hosts,
            dns=network.dns,
            log_bytes=ENGINE_KEEPS,
            limits=self.plan.limits,
        )
        return create_service(self._client, plan)

    async def until(self, ready: Callable[[], Awaitable[str]], timeout: float) -> None:
        """Ask `ready` until it answers the empty string (else: what is missing). Raises ServiceError when the
        container ends before that or `timeout` seconds are over; it says what it printed last."""
        import anyio

        missing, looked, began = "", 0.0, time.monotonic()
        with anyio.move_on_after(timeout) as limit:
            while missing := await ready():
                if time.monotonic() - looked > _STATE_SECONDS:
                    await self.must_run("before it was ready")
                    looked = time.monotonic()
                await anyio.sleep(max(_POLL_SECONDS, (time.monotonic() - began) / 50))
        if limit.cancelled_caught:
            await self.must_run("before it was ready")
            problem = f"was not ready within {timeout:g} s{f': {missing}' if missing else ''}"
            raise await self.failure_in_thread(problem, "If it only needs longer, give it more `ready_timeout`.")

    async def must_run(self, when: str) -> None:
        """Raises ServiceError when the container has ended: how, and what it printed last."""
        problem, advice = _end(await self._refresh(), when)
        if problem:
            raise await self.failure_in_thread(problem, advice)

    def must_not_have_failed(self, when: str) -> None:
        """Raises ServiceError when the container has ended of itself, other than with success. Blocking."""
        state = self._state()
        problem, advice = _end(state, when)
        if problem and (state.get("OOMKilled") or state.get("ExitCode") != 0):
            raise self.failure(problem, advice)

    def has_ended(self) -> bool:
        """Whether it runs no more, however that came. Blocking; raises ServiceError."""
        return not self._state().get("Running")

    async def _refresh(self) -> ContainerState:
        import anyio.to_thread

        return await anyio.to_thread.run_sync(self._state)

    def _state(self) -> ContainerState:
        container = self._id
        if container is None:
            return {"Running": False}
        problem = f"service {self.plan.service} went away"
        self._described = ask_here(lambda: self._client.inspect_container(container), problem)
        return self._described["State"]

    async def health(self) -> str | None:
        """What the image's own health check says (`starting`, `healthy`, `unhealthy`); None when it has none."""
        state = await self._refresh()
        status = (state.get("Health") or {}).get("Status")
        return str(status) if status and status != "none" else None

    def exposed_ports(self) -> list[int]:
        """The TCP ports that the image says it listens on."""
        ports = self._described["Config"].get("ExposedPorts") or {}
        return sorted(int(name.split("/")[0]) for name in ports if name.endswith("/tcp"))

    async def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Run a program inside; its exit code and what it printed. 126 and 127 when it can't be started. Raises
        ServiceError."""
        container = self._id
        assert container is not None
        try:
            exit_code, printed = await ask_engine(
                lambda: self._client.run_beside(container, argv, environment=env or {}),
                f"service {self.plan.service}: a command can't be run in it",
                abandon=True,
            )
        except ServiceError:
            await self.must_run("before a command was run in it")
            raise
        return -1 if exit_code is None else exit_code, printed.decode("utf-8", "replace")

    def end(self) -> Capture:
        """Kill it. Returns all that it had printed, both streams as they came; its plan has `output_to`. Blocking;
        raises ServiceError, too where that may not be all."""
        followed = self._followed
        assert followed is not None
        problem = f"service {self.plan.service}: all that it printed can't be had"
        with engine_errors(problem, ServiceError):
            with unless_refused(409):  # it has ended by itself
                self._client.kill(self.id)
            return followed.capture(_OUTPUT_SECONDS)

    def tail(self) -> str:
        """What it printed last, at most 4,000 characters; empty when that can't be had. Kept when it is removed.
        Blocking."""
        container = self._id
        if container is None:
            return self._last_printed
        try:
            printed = ask_here(lambda: self._client.logs(container, lines=_TAIL_LINES), "logs")
        except ServiceError:
            return self._last_printed
        self._last_printed = printed.decode("utf-8", "replace").strip()[-SERVER_TAIL_CHARACTERS:]
        return self._last_printed

    def failure(self, problem: str, advice: str = "") -> ServiceError:
        """A ServiceError about this service, with how it ended, if it has, and what it printed last. Blocking."""
        if not advice:
            with contextlib.suppress(ServiceError):
                end, advice = _end(self._state(), "meanwhile")
                problem = f"{problem}; it {end}" if end else problem
        printed = self.tail()
        if self.plan.is_database:
            problem, printed = f"{problem}{signal_told(printed)}", without_statements(printed)
        last = f"; it printed last:\n{printed}" if printed else "; it printed nothing"
        return ServiceError(f"service {self.plan.service} (image {self.plan.image}) {problem}{last}", help=advice)

    async def failure_in_thread(self, problem: str, advice: str = "") -> ServiceError:
        """See `failure`, which asks the engine."""
        import anyio.to_thread

        return await anyio.to_thread.run_sync(self.failure, problem, advice)

    async def address_in(self, network: ContainerNetwork) -> str:
        """Its address in a network that it has joined. Raises ServiceError."""
        await self._refresh()
        return address_in(self._described, network.name)

    async def remove(self) -> None:
        """End it at once and remove it and its volumes: nothing of it is left but what it printed. Never raises, and
        an engine that does not answer is not waited for; what stays is found by its label."""
        container = self._id
        if container is None:
            return
        self._id = None
        await self._keep_logs(container)
        with contextlib.suppress(ServiceError):  # the engine is gone, or something else removes it just now
            await ask_within(lambda: self._remove(container), "removal", REMOVAL_SECONDS)
        if self._followed is not None:
            self._followed.close()

    def _remove(self, container: str) -> None:
        with unless_refused(404):
            self._client.remove_container(container)

    async def _keep_logs(self, container: str) -> None:
        import anyio.to_thread

        logs = self._kept_logs
        try:
            printed: bytes = await ask_within(lambda: self._client.logs(container), "logs", _LOG_SECONDS)
        except ServiceError as error:
            problem = error.message
            if logs is not None:
                await anyio.to_thread.run_sync(lambda: logs.lack(self.plan.service, self._cell, problem))
            return
        self._last_printed = (
            printed[-SERVER_TAIL_CHARACTERS * 4 :].decode("utf-8", "replace").strip()[-SERVER_TAIL_CHARACTERS:]
        )
        # Not in the thread that asks: one that is late is left to itself, and would write beside what was said for it.
        if logs is not None:
            await anyio.to_thread.run_sync(lambda: logs.keep(self.plan.service, self._cell, printed))


def _end(state: ContainerState, when: str) -> tuple[str, str]:
    """How a container ended, and what to do about it; two empty texts of one that runs."""
    if state.get("Running") and not state.get("Restarting"):
        return "", ""
    if state.get("OOMKilled"):
        return f"was killed {when}: it was out of memory", _MEMORY_ADVICE
    said = f" ({state['Error']})" if state.get("Error") else ""
    return f"ended {when}, with exit code {state.get('ExitCode', 'unknown')}{said}", _END_ADVICE


def _with_advice(error: ServiceError, plan: ServiceContainerPlan) -> ServiceError:
    """The engine's most frequent refusals, with what to do."""
    if "executable file not found" in error.message or "no such file or directory" in error.message:
        advice = f"Set `command` to a program that image {plan.image} has."
    elif "No command specified" in error.message:
        advice = f"Image {plan.image} has no command of its own: set `command`."
    else:
        return error
    return ServiceError(error.message, help=advice)
