"""What an engine answers, as far as we read it, under its own names, and the labels by which we find our own things.

An answer may lack each of its fields.
"""

from __future__ import annotations

from typing import TypedDict

Labels = dict[str, str] | None
Texts = dict[str, str]


class ContainerState(TypedDict, total=False):
    """Whether a container runs, and how it ended."""

    Running: bool
    Restarting: bool
    OOMKilled: bool
    ExitCode: int
    Error: str
    Health: Texts | None
    """What its image's own check says, as `Status`."""


class ImageConfig(TypedDict, total=False):
    """What an image gives its containers."""

    Cmd: list[str] | None
    Entrypoint: list[str] | None
    Env: list[str] | None
    User: str | None
    WorkingDir: str | None
    Shell: list[str] | None
    Labels: Labels
    Hostname: str
    ExposedPorts: dict[str, object] | None
    """By names like `80/tcp`."""


class NetworkSettings(TypedDict, total=False):
    """The networks of a container."""

    Networks: dict[str, Texts]
    """By name: its `IPAddress` there."""


class GraphDriver(TypedDict, total=False):
    """What keeps a container's files."""

    Data: Texts | None
    """`UpperDir` is where its own layer lies."""


class Container(TypedDict, total=False):
    """One container, inspected."""

    Id: str
    State: ContainerState
    Config: ImageConfig
    HostConfig: Texts
    """Has its `NetworkMode`."""
    NetworkSettings: NetworkSettings
    Mounts: list[Texts] | None
    """Each has a `Destination` inside and a `Source` on the engine's machine."""
    GraphDriver: GraphDriver | None


class ListedContainer(TypedDict, total=False):
    """One container of a list."""

    Id: str
    Names: list[str] | None
    Labels: Labels
    Created: int
    """Seconds since the epoch."""
    HostConfig: Texts | None
    """Has its `NetworkMode`."""


class Pools(TypedDict, total=False):
    """The ranges of addresses of a network."""

    Config: list[Texts]
    """Each has a `Subnet`, and a `Gateway` where one was set aside."""


class NetworkRecord(TypedDict, total=False):
    """One network."""

    Id: str
    Name: str
    Created: str
    Labels: Labels
    Internal: bool
    IPAM: Pools
    Containers: dict[str, object] | None
    """By their ids."""


class Volume(TypedDict, total=False):
    """One volume."""

    Name: str
    CreatedAt: str
    Labels: Labels


class ImageRecord(TypedDict, total=False):
    """One image, inspected."""

    Id: str
    RepoTags: list[str] | None
    RepoDigests: list[str] | None
    Config: ImageConfig | None


class ListedImage(TypedDict, total=False):
    """One image of a list."""

    Id: str
    RepoTags: list[str] | None
    Labels: Labels
    Created: int


class ChangeRecord(TypedDict):
    """A path of a container's own layer."""

    Path: str
    Kind: int
    """0 = changed, 1 = new, 2 = removed."""


class EngineFacts(TypedDict, total=False):
    """What an engine says of itself."""

    SecurityOptions: list[str] | None
    SystemTime: str
    OSType: str
    MemoryLimit: bool
    PidsLimit: bool
    CpuCfsQuota: bool


class EngineVersion(TypedDict, total=False):
    """Which engine it is."""

    Version: str
    ApiVersion: str


class PullEvent(TypedDict, total=False):
    """What an engine says while it pulls an image."""

    id: str
    status: str
    error: str
    progressDetail: dict[str, int] | None
    """Bytes of a layer: `current` of `total`."""


RUN = "keystone.run"
KIND = "keystone.kind"
OWNER = "keystone.owner"
"""Which provider of sandboxes made it: a run may have several, for several images."""
SERVICE = "keystone.service"
CELL = "keystone.cell"
SETUP = "keystone.setup"
"""Of an image that is found again: the digest of what made it."""


def labels(run_id: str, kind: str, *, owner: str = "", service: str = "", cell: str = "") -> dict[str, str]:
    """The labels of something that a run makes. kind: `sandbox`, `service`, `network`; the others where they apply."""
    optional = {OWNER: owner, SERVICE: service, CELL: cell}
    return {RUN: run_id, KIND: kind, **{name: value for name, value in optional.items() if value}}
