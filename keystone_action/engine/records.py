"""What an engine answers, as far as we read it: its own names, each of which an answer may lack.

The labels that mark what is ours on an engine, and whose it is: everything of a run is found again by them.
"""

from __future__ import annotations

from typing import TypedDict

Labels = dict[str, str] | None
Texts = dict[str, str]


class State(TypedDict, total=False):
    """Whether a container runs, and how it ended. Health: what its image's own check says, as `Status`."""

    Running: bool
    Restarting: bool
    OOMKilled: bool
    ExitCode: int
    Error: str
    Health: Texts | None


class Config(TypedDict, total=False):
    """What an image gives its containers. ExposedPorts: by names like `80/tcp`."""

    Cmd: list[str] | None
    Entrypoint: list[str] | None
    Env: list[str] | None
    User: str | None
    WorkingDir: str | None
    Shell: list[str] | None
    Labels: Labels
    Hostname: str
    ExposedPorts: dict[str, object] | None


class NetworkSettings(TypedDict, total=False):
    """The networks of a container, by name: its `IPAddress` there."""

    Networks: dict[str, Texts]


class GraphDriver(TypedDict, total=False):
    """What keeps a container's files: `UpperDir` is its own layer's place."""

    Data: Texts | None


class Container(TypedDict, total=False):
    """One container, looked at. HostConfig: `NetworkMode`. Mounts: each has a `Destination` inside and a `Source` on
    the engine's machine."""

    Id: str
    State: State
    Config: Config
    HostConfig: Texts
    NetworkSettings: NetworkSettings
    Mounts: list[Texts] | None
    GraphDriver: GraphDriver | None


class ListedContainer(TypedDict, total=False):
    """One container of a list. Created: seconds since the epoch. HostConfig: `NetworkMode`."""

    Id: str
    Names: list[str] | None
    Labels: Labels
    Created: int
    HostConfig: Texts | None


class Pools(TypedDict, total=False):
    """The ranges of addresses of a network: each has a `Subnet`, and a `Gateway` where one was set aside."""

    Config: list[Texts]


class NetworkRecord(TypedDict, total=False):
    """One network. Containers: by their ids."""

    Id: str
    Name: str
    Created: str
    Labels: Labels
    Internal: bool
    IPAM: Pools
    Containers: dict[str, object] | None


class Volume(TypedDict, total=False):
    """One volume."""

    Name: str
    CreatedAt: str
    Labels: Labels


class ImageRecord(TypedDict, total=False):
    """One image, looked at."""

    Id: str
    RepoTags: list[str] | None
    RepoDigests: list[str] | None
    Config: Config | None


class ListedImage(TypedDict, total=False):
    """One image of a list. Created: seconds since the epoch."""

    Id: str
    RepoTags: list[str] | None
    Labels: Labels
    Created: int


class ChangeRecord(TypedDict):
    """A path of a container's own layer. Kind: 0 = otherwise than in the image, 1 = new, 2 = removed."""

    Path: str
    Kind: int


class Facts(TypedDict, total=False):
    """What an engine says of itself."""

    SecurityOptions: list[str] | None
    SystemTime: str
    OSType: str
    MemoryLimit: bool
    PidsLimit: bool
    CpuCfsQuota: bool


class Version(TypedDict, total=False):
    """Which engine it is."""

    Version: str
    ApiVersion: str


class PullEvent(TypedDict, total=False):
    """What an engine says while it pulls an image. progressDetail: bytes of a layer, `current` of `total`."""

    id: str
    status: str
    error: str
    progressDetail: dict[str, int] | None


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
