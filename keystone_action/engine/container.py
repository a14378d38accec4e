"""One container, from what it is made of to its removal, in one thread that may block. Commands and probes run in one.

create → prepare → attach → start → read until its end → look at how it ended → collect → remove
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from keystone_action.engine.calls import Refused, aside, engine_errors, unless_refused
from keystone_action.engine.streams import AttachedStreams, Demultiplexer, KeptStream
from keystone_action.errors import SandboxError
from keystone_action.files.disk_usage import human
from keystone_action.system.command import DEFAULT_PIDS, Capture, CommandLimits, Completed, KeptWhole

if TYPE_CHECKING:
    from docker.types import HostConfig

    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.records import ContainerState
    from keystone_action.engine.streams import AttachedStreams


_HASTY_DNS = ("timeout:1", "attempts:1")
"""A plan names other name servers than the machine's so that look-ups fail. Without these options that takes ten
seconds."""
HOST_NAME = "sandbox"
_ROOT_LACKS = ["AUDIT_WRITE", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SYS_CHROOT"]
"""What root's containers do without, of the little that an engine leaves it: installing packages needs none of it."""

_SERVICES_LACK = ["NET_RAW", "MKNOD", "AUDIT_WRITE"]
"""Capabilities of the engine's default that no service needs. With NET_RAW a container that several cells share could
speak in the name of its neighbours' addresses."""
_SERVICE_PIDS = 4096


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the engine's machine, under a path inside."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """What one container of a command or a probe is made of."""

    image: str
    argv: tuple[str, ...]
    user: int
    """Its numeric user and group; 0 = root."""
    directory: str
    labels: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: CommandLimits = field(default_factory=CommandLimits)
    mounts: tuple[Mount, ...] = ()
    volumes: tuple[str, ...] = ()
    """Paths that are not part of its own layer; what lies there is removed with it."""
    network: str = "none"
    networks: tuple[str, ...] = ()
    """Further networks of the engine that it is in from its start."""
    extra_hosts: Mapping[str, str] = field(default_factory=dict)
    dns: tuple[str, ...] = ()
    """Addresses of name servers in place of the machine's. In a network of its own, the engine still answers for names
    of containers itself."""
    init: bool = True
    """Whether process 1 is an init, which reaps orphans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """What one container of a service is made of. It runs as its image's own user."""

    name: str
    """The container's, on the engine."""
    image: str
    command: str | Sequence[str] | None
    """Text is split as a shell would; a list is taken exactly; None = the image's own."""
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    network: str
    aliases: Sequence[str]
    """Its names in its network."""
    extra_hosts: Mapping[str, str]
    dns: tuple[str, ...]
    log_bytes: int
    """How much the engine keeps of what it prints, in each of two files."""
    limits: CommandLimits = field(default_factory=CommandLimits)
    """Of a service that is the agent; any other has none but of its processes."""


def create(client: EngineClient, plan: ContainerPlan) -> str:
    """Have the engine make the container; returns its id. Raises what the client raises."""
    return client.create_container(
        plan.image,
        list(plan.argv[1:]),
        # An image's own entrypoint (`python`, a script) would get our program as its argument.
        entrypoint=[plan.argv[0]],
        user=f"{plan.user}:{plan.user}",
        environment=plan.environment,
        directory=plan.directory,
        hostname=HOST_NAME if plan.network != "host" else None,
        labels=plan.labels,
        own_health_check=False,
        host=_host_config(client, plan),
        # The proxies of our own client configuration may carry passwords.
        proxies=False,
    )


def join_networks(client: EngineClient, plan: ContainerPlan, container: str) -> None:
    """Put a container that was made, not started, into its further networks. Raises what the client raises."""
    for network in plan.networks:
        client.join(network, container)


def create_service(client: EngineClient, plan: ServicePlan) -> str:
    """Have the engine make the container of a service; returns its id. Raises what the client raises."""
    from docker.types import HostConfig, LogConfig

    command = plan.command if plan.command is None or isinstance(plan.command, str) else list(plan.command)
    host = HostConfig(
        client.api_version,
        network_mode=plan.network,
        extra_hosts=dict(plan.extra_hosts) or None,
        dns=list(plan.dns) or None,
        log_config=LogConfig(type="json-file", config={"max-size": str(plan.log_bytes), "max-file": "2"}),
        security_opt=["no-new-privileges:true"],
        cap_drop=_SERVICES_LACK,
        pids_limit=plan.limits.pids or _SERVICE_PIDS,
        nano_cpus=None if plan.limits.cpu is None else max(math.ceil(plan.limits.cpu * 1e9), 1),
        mem_limit=plan.limits.memory,
        memswap_limit=plan.limits.memory,
        # It may be in several networks, and does not forward between them.
        sysctls={"net.ipv4.ip_forward": "0"},
    )
    return client.create_container(
        plan.image,
        command,
        name=plan.name,
        environment=plan.environment,
        labels=plan.labels,
        host=host,
        aliases={plan.network: list(plan.aliases)},
        proxies=True,
    )


def _host_config(client: EngineClient, plan: ContainerPlan) -> HostConfig:
    from docker.types import HostConfig, LogConfig, Ulimit
    from docker.types import Mount as EngineMount

    limits = plan.limits
    # The kernel ends a single file at the limit, however fast it grows between two looks.
    ulimits = [Ulimit(name="core", soft=0, hard=0)]
    if limits.disk is not None:
        ulimits.append(Ulimit(name="fsize", soft=limits.disk, hard=limits.disk))
    mounts = [EngineMount(m.target, m.source, type="bind", read_only=m.read_only) for m in plan.mounts]
    mounts += [EngineMount(path, None, type="volume", labels=dict(plan.labels)) for path in plan.volumes]
    return HostConfig(
        client.api_version,
        mounts=mounts,
        network_mode=plan.network,
        extra_hosts=dict(plan.extra_hosts) or None,
        dns=list(plan.dns) or None,
        dns_opt=list(_HASTY_DNS) if plan.dns else None,
        init=plan.init,
        privileged=False,
        cap_drop=["ALL"] if plan.user else _ROOT_LACKS,
        security_opt=["no-new-privileges"],
        pids_limit=limits.pids or DEFAULT_PIDS,
        nano_cpus=max(math.ceil(limits.cpu * 1e9), 1) if limits.cpu is not None else None,
        ulimits=ulimits,
        # Output goes to us alone: an engine that keeps it too would fill its disk.
        log_config=LogConfig(type="none", config={}),
        auto_remove=False,
        mem_limit=limits.memory,
        # Equal numbers = no swap beyond it.
        memswap_limit=limits.memory,
    )


_PATIENCE = 0.1
"""Seconds between looks at whether we are to stop, while a container says nothing."""
_BETWEEN_LOOKS = 0.1
"""Seconds between two looks at the disk, at least."""
_LOOKS_SHARE = 5
"""A look that takes long is not taken again at once: there are this many times as many seconds between them."""
_TO_DIE = 30
"""Seconds a killed container gets until the engine says that it has ended."""
_CHUNK = 1 << 18
_REMOVAL_TRIES = 5


class ContainerStopped(Exception):  # noqa: N818 - not an error: we were asked to
    """The container was ended because `Run.stop` was called."""


class ContainerRun:
    """A container's life.

    prepare, collect: called with the container's id before its start and after its end; collect may return the sentence
    for a limit that was exceeded. look: called now and then while it runs, and returns such a sentence, too. on_stop:
    called to break off a prepare or collect. kept_whole: as in `Command`.
    """

    def __init__(
        self,
        client: EngineClient,
        plan: ContainerPlan,
        *,
        timeout: float | None = None,
        prepare: Callable[[str], None] | None = None,
        collect: Callable[[str], str | None] | None = None,
        look: Callable[[str], str | None] | None = None,
        on_stop: Callable[[], None] | None = None,
        kept_whole: tuple[KeptWhole | None, KeptWhole | None] = (None, None),
    ) -> None:
        self.stopped = False
        self.identifier: str | None = None
        """Its container, from when it runs."""
        self._finishing = False
        self._on_stop = on_stop
        self._client = client
        self._plan = plan
        self._timeout = timeout
        self._prepare = prepare
        self._collect = collect
        self._look = look
        self._output = Demultiplexer(*(KeptStream(whole=each) for each in kept_whole))
        self._limit: str | None = None
        self._timed_out = False

    def stop(self) -> None:
        """End it now, from any thread. `execute` then raises ContainerStopped, or what a broken-off collect does."""
        self.stopped = True
        if self._on_stop is not None:
            self._on_stop()

    def finish(self) -> None:
        """From any thread: kill what runs in it, or will run; `execute` returns what it printed until then."""
        self._finishing = True

    def execute(self) -> Completed:
        """Blocks until the container is gone. Raises SandboxError, ContainerStopped."""
        identifier = done = None
        try:
            with engine_errors(f"can't run a container of {self._plan.image}"):
                self._go_on()
                identifier = create(self._client, self._plan)
                join_networks(self._client, self._plan, identifier)
                with contextlib.closing(self._output):
                    done = self._live(identifier)
                return done
        finally:
            if identifier is not None:
                # The first failure is the one to tell. Of a container that stays, the end of the run tells.
                with contextlib.suppress(SandboxError) if done is None else contextlib.nullcontext():
                    remove_container(self._client, identifier)

    def _go_on(self) -> None:
        if self.stopped:
            raise ContainerStopped

    def _live(self, identifier: str) -> Completed:
        self._go_on()
        if self._prepare is not None:
            self._prepare(identifier)
        self._go_on()
        attached = self._client.attach_streams(identifier)
        try:
            began = time.monotonic()
            refusal = self._start(identifier)
            if refusal is not None:
                return refusal
            self.identifier = identifier
            began = time.monotonic()
            self._read(identifier, attached, began)
        finally:
            attached.close()
        self._client.wait(identifier, _TO_DIE)
        duration = time.monotonic() - began
        state = self._client.inspect_container(identifier)["State"]
        if self._collect is not None:
            self._limit = self._collect(identifier) or self._limit
        return self._make_completed(state, duration)

    def _start(self, identifier: str) -> Completed | None:
        """A Completed when the runtime itself could not start the program."""
        try:
            self._client.start(identifier)
        except Refused as error:
            refusal = _refusal(error.sentence)
            if refusal is None:
                raise
            return refusal
        return None

    def _read(self, identifier: str, connection: AttachedStreams, began: float) -> None:
        """Reads on all the time: an engine waits for everybody attached before it says or ends anything."""
        connection.settimeout(_PATIENCE)
        deadline = began + self._timeout if self._timeout is not None else None
        killed = 0.0
        killing: Future[None] | None = None
        looking: Future[str | None] | None = None
        next_look = began + _PATIENCE
        while True:
            self._go_on()
            try:
                data = connection.recv(_CHUNK)
            except TimeoutError:
                pass
            else:
                if not data:
                    return
                self._output.feed(data)
            now = time.monotonic()
            if killing is not None:
                if now > killed + _TO_DIE:
                    raise self._not_killed(answered=killing.done())
                continue
            if deadline is not None and now >= deadline:
                self._timed_out = True
            elif looking is not None and looking.done():
                self._limit = looking.result()
                next_look = now + max(_BETWEEN_LOOKS, _LOOKS_SHARE * (now - next_look))
                looking = None
            elif looking is None and self._look is not None and now >= next_look:
                next_look = now
                looking = aside(partial(self._look, identifier))
            if self._timed_out or self._limit or self._finishing:
                killed, killing = now, aside(partial(kill_container, self._client, identifier))

    def _not_killed(self, *, answered: bool) -> SandboxError:
        if answered:
            return SandboxError("a container could not be killed: its processes hang in the kernel")
        self._client.doubt()
        return SandboxError(
            f"a container could not be killed: the Docker engine did not answer within {_TO_DIE} s",
            help="see that the engine (DOCKER_HOST, else /var/run/docker.sock) is still running",
        )

    def _make_completed(self, state: ContainerState, duration: float) -> Completed:
        code = int(state["ExitCode"])
        number = code - 128 if code - 128 in set(signal.valid_signals()) else None
        if self._timed_out or (self._limit and number):
            number = int(signal.SIGKILL)
        limit = self._limit
        if limit is None and code != 0 and not self._timed_out:
            limit = self._memory_sentence(state, code)
        return Completed(
            exit_code=code if number is None else None,
            signal=number,
            timed_out=self._timed_out,
            limit=limit,
            not_found=False,
            duration_s=duration,
            stdout=self._output.stdout.capture(),
            stderr=self._output.stderr.capture(),
        )

    def _memory_sentence(self, state: ContainerState, code: int) -> str | None:
        allowed = self._plan.limits.memory
        if not state.get("OOMKilled") or allowed is None:
            return None
        what = "the container" if code == 128 + signal.SIGKILL else "a process in the container"
        return f"memory: {what} was killed at {human(allowed)} allowed"


def _refusal(said: str) -> Completed | None:
    """What a runtime said about a program that it could not start; None = something else was wrong."""
    lower = said.lower()
    missing = "executable file not found" in lower or ("exec" in lower and "no such file or directory" in lower)
    closed = "permission denied" in lower and "exec" in lower
    folder = "chdir to cwd" in lower or "not a directory" in lower
    if not (missing or closed or folder) or "docker-init" in lower:
        return None
    absent = missing and not folder
    return could_not_start(f"keystone: {said}\n", 127 if absent else 126, not_found=absent)


def could_not_start(sentence: str, code: int, *, not_found: bool = False) -> Completed:
    """The end of a command that never began, as a shell would tell it."""
    text = sentence.encode("utf-8", "replace")
    return Completed(
        exit_code=code,
        signal=None,
        timed_out=False,
        limit=None,
        not_found=not_found,
        duration_s=0.0,
        stdout=Capture(),
        stderr=Capture(head=text, total=len(text)),
    )


def not_found(completed: Completed, program: str) -> Completed:
    """The same end, as that of a program that does not exist."""
    sentence = f"keystone: {program}: no such program in the sandbox, or none that its user may run\n".encode(
        "utf-8", "replace"
    )
    return dataclasses.replace(completed, not_found=True, stderr=Capture(head=sentence, total=len(sentence)))


def exit_code(client: EngineClient, identifier: str) -> int:
    """Of a container that has ended. Raises SandboxError."""
    with engine_errors("can't look at how a container ended"):
        return int(client.inspect_container(identifier)["State"]["ExitCode"])


def kill_container(client: EngineClient, identifier: str) -> None:
    """SIGKILL for all in the container; one that has ended by itself is fine too."""
    with unless_refused(404, 409):
        client.kill(identifier)


def remove_container(client: EngineClient, identifier: str) -> None:
    """End and remove a container with its anonymous volumes. Raises SandboxError when it stays."""
    with engine_errors("can't remove a container"):
        for attempt in range(_REMOVAL_TRIES):
            try:
                client.remove_container(identifier)
            except Refused as error:
                if error.status == 404:
                    return
                busy = error.status in {409, 500}
                if not busy or attempt == _REMOVAL_TRIES - 1:
                    raise
                # "removal is already in progress", "device or resource busy": both pass.
                time.sleep(0.2 * (attempt + 1))
            else:
                return
