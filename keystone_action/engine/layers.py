"""What `setup` left in a container, as an image: one that is found again by its content, or one cell's own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from keystone_action.engine import labels as label
from keystone_action.engine import pack as docker_pack
from keystone_action.engine.container import Run
from keystone_action.engine.errors import Refused, engine_errors
from keystone_action.engine.image import Image, find_image
from keystone_action.engine.plan import ContainerPlan
from keystone_action.engine.transfers import put

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.records import Config

REPOSITORY = "keystone-setup"
"""Of images that are found again; their tag is the digest of what made them."""
OWN_REPOSITORY = "keystone-cell"
OWN_KIND, KEPT_KIND = "image", "setup"
_INIT = ("/sbin/docker-init", "/usr/sbin/docker-init")
_REMOVED = 2
"""The kind of a change that took something away."""
_PATHS, _NEEDLES = "/.keystone-paths", "/.keystone-needles"
_SEARCH_TIMEOUT = 120.0

# 0 = found, 1 = not found, else it can't be told: also when a path could not be read.
_SEARCH = f"""
for program in tar xargs grep; do command -v "$program" >/dev/null || exit 3; done
export LC_ALL=C
cd / && {{ xargs -0 tar -cf - -- <{_PATHS} || cat {_NEEDLES}; }} 2>/dev/null | grep -qF -f {_NEEDLES}
"""


def digest_of(*content: object) -> str:
    """The name of what this content (anything that JSON can say) makes."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def find_layer(client: EngineClient, image: Image, digest: str, known: dict[str, Image]) -> Image | None:
    """The image that was made of `image` by the content of this digest. By its label too: anybody may give an image
    this name. known: what was found before, which is taken as it is and added to. Blocks. Raises SandboxError."""
    if digest in known:
        return known[digest]
    name = f"{REPOSITORY}:{digest}"
    with engine_errors(f"can't look for the image {name}"):
        filters = {"label": [f"{label.SETUP}={digest}"], "reference": REPOSITORY}
        if not any(name in (found.get("RepoTags") or []) for found in client.list_images(filters)):
            return None
    known[digest] = learned(client, image, name)
    return known[digest]


def learned(client: EngineClient, image: Image, name: str) -> Image:
    """An image that was made of `image`, ready to be used. Blocks. Raises SandboxError."""
    found = dataclasses.replace(find_image(client, name, image.labels), name=image.name, init=image.init)
    found.learn()
    return found


def commit_kept(
    client: EngineClient, image: Image, container: str, digest: str, proven: Callable[[str], bool] = lambda _: True
) -> str | None:
    """Make the image that `find_layer` finds, if `proven` says so of its id. Returns its id. Blocks."""
    identifier = _commit(
        client, image, container, {label.KIND: KEPT_KIND, label.SETUP: digest, label.RUN: "", label.OWNER: ""}
    )
    with engine_errors("can't name an image"):
        # Named at once, so that it is found and swept if we are killed now.
        unproven = f"unproven-{secrets.token_hex(8)}"
        client.tag(identifier, REPOSITORY, unproven)
    try:
        good = proven(identifier)
        if good:
            with engine_errors("can't name an image"):
                client.tag(identifier, REPOSITORY, digest)
    finally:
        remove_image(client, f"{REPOSITORY}:{unproven}")
    return identifier if good else None


def commit_own(client: EngineClient, image: Image, container: str, labels: Mapping[str, str]) -> str:
    """Make an image for one cell, labelled as its run's. Returns its id. Blocks."""
    own = {label.SETUP: "", **labels, label.KIND: OWN_KIND}
    identifier = _commit(client, image, container, own)
    with engine_errors("can't name an image"):
        # With a name, it is not what somebody's `docker image prune` takes.
        client.tag(identifier, OWN_REPOSITORY, identifier.removeprefix("sha256:"))
    return identifier


def _commit(client: EngineClient, image: Image, container: str, labels: Mapping[str, str]) -> str:
    """With the description of the image that it was made of, but for labels."""
    with engine_errors("can't keep what setup did as an image"):
        original = client.inspect_image(image.identifier).get("Config") or {}
        kept: Config = {
            "Cmd": original.get("Cmd"),
            # None would be the container's, which is our script.
            "Entrypoint": original.get("Entrypoint") or [],
            "Env": original.get("Env"),
            "User": original.get("User"),
            "WorkingDir": original.get("WorkingDir"),
            "Shell": original.get("Shell"),
            "Labels": {**(original.get("Labels") or {}), **labels},
        }
        return client.commit(container, kept)


def list_layer_changes(client: EngineClient, container: str, ours: Collection[str]) -> list[str] | None:
    """Paths that a container added to its image or changed. Of a new directory, only its own path is listed, not its
    files. None = nothing was changed. ours: paths that we, or mounts, made there. Blocks. Raises SandboxError."""
    with engine_errors("can't look at what setup changed"):
        found = {str(change["Path"]): int(change["Kind"]) for change in client.changes(container)}
    made = {*ours, *_INIT}
    made |= {str(parent) for path in made for parent in PurePosixPath(path).parents}
    theirs = {path: kind for path, kind in found.items() if path not in made}
    if not theirs:
        return None
    above = {str(parent) for path in theirs for parent in PurePosixPath(path).parents}
    new = {path for path, kind in found.items() if kind == 1}
    return sorted(
        path
        for path, kind in theirs.items()
        if kind != _REMOVED
        and not (kind == 0 and path in above)
        and not any(str(parent) in new and str(parent) not in made for parent in PurePosixPath(path).parents)
    )


def holds(client: EngineClient, image: Image, identifier: str, paths: Sequence[str], needles: Collection[str]) -> bool:
    """Whether one of these texts is in what lies at these paths of an image made of `image`; also True when that can't
    be told. Blocks. Raises SandboxError."""
    wanted = [line for needle in needles for line in needle.splitlines() if line.strip()]
    if not paths or not wanted:
        return False
    archive = [
        *docker_pack.small_file(_PATHS.lstrip("/"), "\0".join(path.lstrip("/") for path in paths).encode(), 0o600),
        *docker_pack.small_file(_NEEDLES.lstrip("/"), "\n".join(wanted).encode(), 0o600),
    ]

    def prepare(container: str) -> None:
        put(client, container, archive)

    plan = ContainerPlan(identifier, ("/bin/sh", "-c", _SEARCH), 0, "/", image.labels, init=image.init)
    return Run(client, plan, timeout=_SEARCH_TIMEOUT, prepare=prepare).execute().exit_code != 1


def remove_image(client: EngineClient, image: str) -> bool:
    """Remove an image of ours by its name or, the only name that it has included, by its id. Whether it is gone: one
    that something still uses stays, which is no problem. Blocks. Raises SandboxError."""
    with engine_errors(f"can't remove the image {image}"):
        try:
            client.remove_image(image)
        except Refused as error:
            if error.status not in (404, 409):
                raise
            return error.status == 404
    return True
