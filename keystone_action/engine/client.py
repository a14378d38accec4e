"""The client of a container engine: all that we ask one, with the types of what it answers.

Everything here blocks. Raises `Refused` and `NoAnswer` of `errors`, and OSError for a failure of this machine.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from docker.errors import APIError, DockerException
from docker.types import EndpointConfig, HostConfig

from keystone_action.engine.calls import Refused, UnusableLogin
from keystone_action.engine.connection import EngineConnection, library_errors
from keystone_action.engine.records import (
    ChangeRecord,
    Container,
    EngineFacts,
    EngineVersion,
    ImageConfig,
    ImageRecord,
    ListedContainer,
    ListedImage,
    NetworkRecord,
    PullEvent,
    Volume,
)
from keystone_action.engine.streams import AttachedStreams, Demultiplexer, KeptStream

Filters = Mapping[str, str | Sequence[str]]
T = TypeVar("T")


class EngineClient:
    """What we ask one engine. Made by `connect`, closed by its maker. Any number of threads may use it."""

    def __init__(self, connection: EngineConnection) -> None:
        self._connection = connection

    def close(self) -> None:
        """Give the connection back. Twice does no harm."""
        self._connection.close()

    # How long it is waited for.

    def doubt(self) -> None:
        """It did not do in time what it was asked: the next request gets little time."""
        self._connection.doubt()

    def hurry(self, seconds: float, *, cut_after: float) -> None:
        """No request may take longer from here on, and all of them end after so many seconds."""
        self._connection.hurry(seconds)
        self._timer(cut_after).start()

    @contextlib.contextmanager
    def cut_after(self, seconds: float) -> Iterator[None]:
        """Cut the connections when the body takes longer."""
        timer = self._timer(seconds)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _timer(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._connection.cut)
        timer.daemon = True
        timer.name = "keystone-engine-deadline"
        return timer

    # The engine itself.

    @library_errors()
    def facts(self) -> EngineFacts:
        """What it says of itself."""
        found: EngineFacts = self._connection.info()  # type: ignore[assignment]
        return found

    @library_errors()
    def engine_version(self) -> EngineVersion:
        """Which engine it is."""
        found: EngineVersion = self._connection.version()  # type: ignore[assignment]
        return found

    @property
    def api_version(self) -> str:
        """The version of the interface that it and we speak."""
        return self._connection.api_version

    # Containers.

    @library_errors()
    def create_container(
        self,
        image: str,
        command: str | list[str] | None,
        *,
        host: HostConfig,
        labels: Mapping[str, str],
        environment: Mapping[str, str],
        name: str | None = None,
        entrypoint: list[str] | None = None,
        user: str | None = None,
        directory: str | None = None,
        hostname: str | None = None,
        own_health_check: bool = True,
        aliases: Mapping[str, Sequence[str]] | None = None,
        proxies: bool,
    ) -> str:
        """Make a container without starting it; returns its id. command: text is split as a shell would.
        own_health_check: whether its image's health check runs. aliases: by network, its names there. proxies: whether
        it gets the proxies of our client's configuration."""
        joined = {
            network: EndpointConfig(self.api_version, aliases=list(names)) for network, names in (aliases or {}).items()
        }
        made = self._connection.create_container(
            image,
            command,
            name=name,
            entrypoint=entrypoint,
            user=user,
            environment=dict(environment),
            working_dir=directory,
            hostname=hostname,
            tty=False,
            stdin_open=False,
            labels=dict(labels),
            healthcheck=None if own_health_check else {"test": ["NONE"]},
            host_config=host,
            networking_config={"EndpointsConfig": joined} if joined else None,
            use_config_proxy=proxies,
        )
        return str(made["Id"])

    @library_errors()
    def start(self, container: str) -> None:
        """Start it."""
        self._connection.start(container)

    @library_errors()
    def wait(self, container: str, seconds: int) -> None:
        """Wait for its end."""
        self._connection.wait(container, timeout=seconds)

    @library_errors()
    def kill(self, container: str) -> None:
        """SIGKILL for all in it."""
        self._connection.kill(container)

    @library_errors()
    def remove_container(self, container: str) -> None:
        """End it, and remove it and its anonymous volumes."""
        self._connection.remove_container(container, force=True, v=True)

    @library_errors()
    def inspect_container(self, container: str) -> Container:
        """What there is to know of it."""
        found: Container = self._connection.inspect_container(container)
        return found

    @library_errors()
    def list_containers(self, filters: Filters | None = None, *, all: bool = False) -> list[ListedContainer]:  # noqa: A002 - the engine's word
        """The containers that run, or with `all` those that have ended, too."""
        found: list[ListedContainer] = self._connection.containers(all=all, filters=dict(filters or {}))
        return found

    @library_errors()
    def processes(self, container: str) -> list[list[str]]:
        """Its processes: for each its number, its parent's (both as the engine's machine counts) and its arguments as
        one text."""
        found = self._connection.top(container, ps_args="-eo pid,ppid,args")
        return found.get("Processes") or []

    @library_errors()
    def logs(self, container: str, *, lines: int | None = None) -> bytes:
        """What it printed, or the last lines of that."""
        return self._connection.logs(container, tail="all" if lines is None else lines)

    @library_errors()
    def changes(self, container: str) -> list[ChangeRecord]:
        """What its own layer changes, by path."""
        found: list[ChangeRecord] | None = self._connection.diff(container)  # type: ignore[assignment]
        return found or []

    @library_errors()
    def layer_size(self, container: str) -> int:
        """Bytes that it added to its image, in its own layer. Negative when the engine met a path that is too long for
        it, or files that just changed under its eyes."""
        return self._connection.layer_size(container)

    @library_errors()
    def put_archive(self, container: str, directory: str, pieces: Iterable[bytes]) -> None:
        """Unpack a tar archive in a directory of it. An OSError of the pieces would be taken for one of the
        connection."""
        self._connection.put_archive(container, directory, pieces)

    def archive(self, container: str, path: str) -> Generator[bytes, None, None]:
        """What is at this path of it, as pieces of a tar archive. To be closed: an engine that still has something to
        say about a container does not remove it."""
        return _each_piece(self._connection.archive(container, path))

    @library_errors()
    def attach_streams(self, container: str) -> AttachedStreams:
        """Connect to its output from now on."""
        params = {"stdout": 1, "stderr": 1, "stream": 1, "stdin": 0, "logs": 0}
        return self._streams(self._connection.attach_socket(container, params=params))

    @library_errors()
    def start_beside(
        self, container: str, argv: Sequence[str], *, user: str, environment: Mapping[str, str], directory: str
    ) -> AttachedStreams:
        """Start a program beside the one of a running container, and connect with its input and its output."""
        made = self._connection.exec_create(
            container, list(argv), stdin=True, user=user, environment=dict(environment), workdir=directory
        )
        return self._streams(self._connection.exec_start(made["Id"], socket=True))

    @library_errors()
    def run_beside(
        self, container: str, argv: Sequence[str], *, environment: Mapping[str, str]
    ) -> tuple[int | None, bytes]:
        """Run a program beside the one of a running container; its exit code, and what it printed to stdout and stderr:
        the first and the last MiB of it."""
        made = self._connection.exec_create(container, list(argv), environment=dict(environment))
        printed = KeptStream()
        output = Demultiplexer(printed, printed)
        with contextlib.closing(self._streams(self._connection.exec_start(made["Id"], socket=True))) as streams:
            streams.settimeout(None)
            while data := streams.recv(1 << 16):
                output.feed(data)
        return self._connection.exec_inspect(made["Id"])["ExitCode"], b"".join(printed.parts())

    def _streams(self, attached: Any) -> AttachedStreams:
        return AttachedStreams(self._connection.socket_of(attached), attached)

    # Images.

    @library_errors()
    def inspect_image(self, image: str) -> ImageRecord:
        """What there is to know of it."""
        found: ImageRecord = self._connection.inspect_image(image)  # type: ignore[no-untyped-call]
        return found

    def has_image(self, image: str) -> bool:
        """Whether there is one of this name."""
        try:
            self.inspect_image(image)
        except Refused as error:
            if error.status != 404:
                raise
            return False
        return True

    @library_errors()
    def list_images(self, filters: Filters) -> list[ListedImage]:
        """The images that match the filters; layers in between are left out."""
        found: list[ListedImage] = self._connection.images(filters=dict(filters))
        return found

    @library_errors()
    def commit(self, container: str, config: ImageConfig) -> str:
        """An image of what is in a container, and with this description; its id."""
        made = self._connection.commit(container, conf=config)
        return str(made["Id"])

    @library_errors()
    def tag(self, image: str, repository: str, version: str) -> None:
        """Give it a further name."""
        self._connection.tag(image, repository, version)

    @library_errors()
    def remove_image(self, image: str) -> None:
        """Take a name from it; with the last one it goes."""
        self._connection.remove_image(image, force=False)

    def pull(self, repository: str, version: str, login: Mapping[str, str] | None) -> Iterator[PullEvent]:
        """What an engine says while it pulls an image, which may take as long as it likes. login: `username` and
        `password`, empty = nobody's; None = what `docker login` kept for our user. Raises UnusableLogin, too."""
        auth = None if login is None else dict(login)
        with library_errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a helper that is missing: we say it ourselves
            try:
                events = self._connection.pull(repository, tag=version, stream=True, decode=True, auth_config=auth)
            except APIError:
                raise
            except DockerException as error:
                raise UnusableLogin(str(error)) from error
        return _each_piece(events)

    # Networks and volumes.

    @library_errors()
    def create_network(
        self, name: str, *, internal: bool, labels: Mapping[str, str], options: Mapping[str, str]
    ) -> NetworkRecord:
        """Make a network; what there is to know of it. internal: no way out of it."""
        made = self._connection.create_network(
            name,
            driver="bridge",
            internal=internal,
            labels=dict(labels),
            check_duplicate=True,
            options=dict(options) or None,
        )
        found: NetworkRecord = self._connection.inspect_network(made["Id"])
        return found

    @library_errors()
    def inspect_network(self, network: str) -> NetworkRecord:
        """What there is to know of it."""
        found: NetworkRecord = self._connection.inspect_network(network)
        return found

    @library_errors()
    def list_networks(self, filters: Filters | None = None) -> list[NetworkRecord]:
        """All networks, or those that have a label."""
        found: list[NetworkRecord] = self._connection.networks(filters=dict(filters or {}))
        return found

    @library_errors()
    def join(self, network: str, container: str, *, aliases: Sequence[str] = ()) -> None:
        """Put a container into a network, under further names."""
        self._connection.connect_container_to_network(container, network, aliases=list(aliases) or None)

    @library_errors()
    def leave(self, network: str, container: str) -> None:
        """Take a container out of a network; harmless when it is not in, or one of the two is gone."""
        try:
            self._connection.disconnect_container_from_network(container, network, force=True)
        except APIError as error:
            if error.status_code != 404 and "not connected" not in str(error.explanation):
                raise

    @library_errors()
    def remove_network(self, network: str) -> None:
        """Remove one that nothing is in."""
        self._connection.remove_network(network)

    @library_errors()
    def list_volumes(self, filters: Filters) -> list[Volume]:
        """The volumes that match the filters."""
        found: list[Volume] | None = self._connection.volumes(filters=dict(filters)).get("Volumes")
        return found or []

    @library_errors()
    def remove_volume(self, volume: str) -> None:
        """Remove one that nothing uses."""
        self._connection.remove_volume(volume, force=True)


def _each_piece(pieces: Generator[T, None, None]) -> Generator[T, None, None]:
    """These pieces; the engine is asked for each when it is wanted."""
    with library_errors():
        yield from pieces
