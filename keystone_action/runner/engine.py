"""Whether a run needs a container engine, and the one it has: all that can be refused is refused before anything runs.

A container sandbox, an image that nothing stands in for, or `--sandbox docker` can't do without one. `image:
postgres:*` would rather have one; without it the embedded server stands in (contract, 5.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keystone_action.errors import SandboxError, UsageError
from keystone_action.spec.models.services import ServerBase

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient
    from keystone_action.options.model import Options
    from keystone_action.spec.loading.loaded_spec import LoadedSpec
    from keystone_action.spec.models.spec import Spec

DEFAULT_BASE = "python:3.12-slim"
"""For `--sandbox docker` where a spec names no `base`."""
_WAYS_OUT = (
    "Start Docker (or set DOCKER_HOST); without it leave `base` out and use type postgres, sqlite, http_mock or"
    " external, which run here; `keystone doctor` says what there is"
)


@dataclass(frozen=True)
class Facilities:
    """What the cells of a run run in. images: by spec id, for the specs whose sandbox is a container. client:
    None = no engine is there or needed. notices: for the head of every report."""

    images: Mapping[str, str] = field(default_factory=dict)
    client: EngineClient | None = None
    notices: tuple[str, ...] = ()

    def close(self) -> None:
        """Give the connection back. Twice does no harm."""
        if self.client is not None:
            self.client.close()


def find_facilities(specs: Sequence[LoadedSpec], options: Options) -> Facilities:
    """The engine, where one of these specs needs or wants it. Raises UsageError when one is needed and none answers."""
    images = {loaded.spec.id: image for loaded in specs if (image := _image(loaded, options)) is not None}
    needed = next((need for loaded in specs for need in _needs(loaded, options)), None)
    wanted = needed is not None or any(wants_engine(loaded.spec) for loaded in specs)
    if not wanted:
        return Facilities(images)
    from keystone_action.engine.connect import connect

    try:
        client = connect(options.caller.environ)
    except SandboxError as error:
        if needed is None:
            return Facilities(images, None, (f"no Docker engine: {error.message}; embedded services are used",))
        raise UsageError(
            f"{needed}, and there is none: {error.message}", help=_join_sentences(error.help, _WAYS_OUT)
        ) from None
    notices = tuple(
        f"spec {loaded.spec.id} names no base; it runs in {DEFAULT_BASE} (--sandbox docker)"
        for loaded in specs
        if loaded.spec.id in images and loaded.spec.base is None
    )
    return Facilities(images, client, notices)


def wants_engine(spec: Spec) -> bool:
    """Whether services of a spec run on an engine where there is one."""
    return any(needs_image(service) for service in spec.services)


def needs_image(service: Any) -> bool:
    """Whether a service is a container where an engine is there."""
    return isinstance(service, ServerBase) and (service.image is not None or service.kind == "mysql")


def _image(loaded: LoadedSpec, options: Options) -> str | None:
    base = loaded.spec.base
    if options.running.sandbox == "docker":
        return base or DEFAULT_BASE
    if base is not None and options.running.sandbox == "process":
        raise UsageError(
            f"{loaded.path}: base: {base} asks for a container, and --sandbox process for none",
            help="leave --sandbox out, or `base`",
        )
    return base


def _needs(loaded: LoadedSpec, options: Options) -> Iterator[str]:
    """What can't do without an engine, a sentence's beginning each."""
    if options.images.docker_network is not None:
        yield f"docker-network: {options.images.docker_network} needs a Docker engine"
    if loaded.spec.base is not None:
        yield f"{loaded.path}: base: {loaded.spec.base} needs a Docker engine"
    elif options.running.sandbox == "docker":
        yield "--sandbox docker needs a Docker engine"
    for service in loaded.spec.services:
        if needs_image(service) and service.kind != "postgres":
            image = getattr(service, "image", None)
            what = f"image: {image}" if image else f"type: {service.kind}"
            yield f"{loaded.path}: service {service.name} ({what}) needs a Docker engine"


def _join_sentences(first: str, second: str) -> str:
    return f"{first.rstrip('.')}. {second}" if first else second
