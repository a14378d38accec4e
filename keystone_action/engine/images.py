"""Images: what we must know of one (its search path, shell, programs and paths, asked of a container of it), and those
that keep what `setup` did, for all cells with the same setup or for one cell."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from keystone_action.engine import archives
from keystone_action.engine import records as label
from keystone_action.engine.archives import put_archive
from keystone_action.engine.calls import Refused, engine_errors
from keystone_action.engine.container import ContainerPlan, ContainerRun, Mount
from keystone_action.errors import SandboxError
from keystone_action.system.command import Completed
from keystone_action.system.environment import DEFAULT_PATH

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.records import ImageConfig

PROBING_USER = 65532
_LINK_PLACE = "E/workspace"
_PROBE_TIMEOUT = 60.0

# Each argument is a letter and a path: P the programs of a directory, D is it a directory, E is there anything,
# X is it a program, N read the nonce there and write the answer beside it.
_SCRIPT = r"""
for question; do
  path=${question#?}
  case $question in
    P*) for file in "$path"/*; do if [ -f "$file" ] && [ -x "$file" ]; then printf 'X%s\n' "$file"; fi; done ;;
    D*) if [ -d "$path" ]; then printf 'D%s\n' "$path"; fi ;;
    E*) if [ -e "$path" ] || [ -L "$path" ]; then printf 'E%s\n' "$path"; fi ;;
    X*) if [ -f "$path" ] && [ -x "$path" ]; then printf 'X%s\n' "$path"; fi ;;
    N*) IFS= read -r nonce <"$path/nonce" && printf '%s\n' "$nonce" >"$path/answer" && printf 'N%s\n' "$nonce" ;;
  esac
done
printf 'end\n'
"""


_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
)  # fmt: skip
"""Where distributions keep the authorities that they trust, in one file."""
_PRINT_CERTIFICATES = 'for file; do if [ -s "$file" ] && [ -r "$file" ]; then exec cat "$file"; fi; done'


@dataclass
class Image:
    """One image on one engine, and what its containers have told of it."""

    client: EngineClient
    name: str
    identifier: str
    """Of its content, so that a tag that moves meanwhile changes nothing."""
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    """Of the containers that are asked."""
    init: bool = True
    """Whether the engine has a program that reaps orphans as process 1."""
    _programs: set[str] = field(default_factory=set)
    _listed: set[str] = field(default_factory=set)
    _others: dict[str, bool] = field(default_factory=dict)
    _certificates: bytes | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def search_path(self) -> str:
        """The PATH that it gives, or the usual one."""
        return self.environment.get("PATH") or DEFAULT_PATH

    @property
    def learned(self) -> bool:
        """Whether `learn` has been called, and was answered."""
        return _LINK_PLACE in self._others

    def learn(self, *questions: str, user: int = PROBING_USER, mounts: tuple[Mount, ...] = ()) -> set[str]:
        """Ask what every sandbox will want to know, and these questions, of one container; returns its answers.
        Blocks. Raises SandboxError (an image without `sh` among them)."""
        with self._lock:
            places = [place for place in self.search_path.split(":") if place.startswith("/")]
            common = [*(f"P{place}" for place in places), _LINK_PLACE]
            answers = self.ask(*common, *questions, user=user, mounts=mounts)
            self._note_programs(places, answers)
            self._others[_LINK_PLACE] = _LINK_PLACE in answers
        return answers

    def list_programs(self, directories: Sequence[str]) -> None:
        """Make `has_program` know these directories of the image. Blocks. Raises SandboxError."""
        with self._lock:
            new = [place for place in directories if place.startswith("/") and place not in self._listed]
            if new:
                self._note_programs(new, self.ask(*(f"P{place}" for place in new)))

    def _note_programs(self, places: Sequence[str], answers: set[str]) -> None:
        self._programs |= {answer[1:] for answer in answers if answer.startswith("X")}
        self._listed |= set(places)

    def has_program(self, path: str) -> bool:
        """Whether this absolute path is a program. Blocks when its directory has not been listed."""
        if path in self._programs or path.rpartition("/")[0] in self._listed:
            return path in self._programs
        return self.exists("X", [path])[0]

    def exists(self, kind: str, paths: Sequence[str]) -> list[bool]:
        """For each path: is it a directory (kind D), is there anything (E), is it a program (X)? Blocks.
        Raises SandboxError."""
        with self._lock:
            questions = [f"{kind}{path}" for path in paths]
            new = [question for question in questions if question not in self._others]
            if new:
                answers = self.ask(*new)
                self._others.update((question, question in answers) for question in new)
            return [self._others[question] for question in questions]

    def certificates(self) -> bytes:
        """The authorities that it trusts, as PEM; empty where it has none. Blocks. Raises SandboxError."""
        with self._lock:
            if self._certificates is None:
                own = self.environment.get("SSL_CERT_FILE", "")
                done = self._run(("/bin/sh", "-c", _PRINT_CERTIFICATES, "sh", own, *_BUNDLES), PROBING_USER, ())
                self._certificates = done.stdout.text().encode()
            return self._certificates

    def lacks(self, path: str) -> bool:
        """Whether it is known that there is no such directory."""
        return self._others.get(f"D{path}") is False

    def ask(self, *questions: str, user: int = PROBING_USER, mounts: tuple[Mount, ...] = ()) -> set[str]:
        """The answers of a container of the image to these questions. Blocks. Raises SandboxError."""
        done = self._run(("sh", "-c", _SCRIPT, "sh", *questions), user, mounts)
        if done.exit_code in (126, 127):
            raise SandboxError(
                f"the image {self.name} has no `sh` that can be run: {done.stderr.text().strip()}",
                help="take an image with a shell as `base`, a Debian or Alpine one for example",
            )
        lines = done.stdout.text().split("\n")
        if done.exit_code != 0 or "end" not in lines:
            raise SandboxError(
                f"a first container of the image {self.name} failed (exit code {done.shell_code}):"
                f" {done.stderr.text().strip()[-500:]}"
            )
        return set(lines)

    def _run(self, argv: tuple[str, ...], user: int, mounts: tuple[Mount, ...]) -> Completed:
        plan = ContainerPlan(self.identifier, argv, user, "/", self.labels, mounts=mounts, init=self.init)
        try:
            return ContainerRun(self.client, plan, timeout=_PROBE_TIMEOUT).execute()
        except SandboxError as error:
            if not self.init or "docker-init" not in error.message:
                raise
        # Some packages of the engine lack the program that it wants to start first.
        self.init = False
        return self._run(argv, user, mounts)


def find_image(client: EngineClient, name: str, labels: Mapping[str, str]) -> Image:
    """An image that the engine has. Blocks. Raises SandboxError when it has none of that name."""
    with engine_errors(f"can't look at the image {name}"):
        try:
            described = client.inspect_image(name)
        except Refused as error:
            if error.status != 404:
                raise
            raise SandboxError(
                f"the image {name} is not on the Docker engine", help=f"`docker pull {name}`, or correct its name"
            ) from error
    pairs = (described.get("Config") or {}).get("Env") or []
    environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return Image(client, name, str(described["Id"]), environment, labels)


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


def layer_digest(*content: object) -> str:
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
    """Make the image that `find_layer` finds, unless `proven` refuses its id. Returns its id. Blocks."""
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
        kept: ImageConfig = {
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


def layer_holds(
    client: EngineClient, image: Image, identifier: str, paths: Sequence[str], needles: Collection[str]
) -> bool:
    """Whether one of these texts is in what lies at these paths of an image made of `image`; also True when that can't
    be told. Blocks. Raises SandboxError."""
    wanted = [line for needle in needles for line in needle.splitlines() if line.strip()]
    if not paths or not wanted:
        return False
    archive = [
        *archives.small_file(_PATHS.lstrip("/"), "\0".join(path.lstrip("/") for path in paths).encode(), 0o600),
        *archives.small_file(_NEEDLES.lstrip("/"), "\n".join(wanted).encode(), 0o600),
    ]

    def prepare(container: str) -> None:
        put_archive(client, container, archive)

    plan = ContainerPlan(identifier, ("/bin/sh", "-c", _SEARCH), 0, "/", image.labels, init=image.init)
    return ContainerRun(client, plan, timeout=_SEARCH_TIMEOUT, prepare=prepare).execute().exit_code != 1


def remove_image(client: EngineClient, image: str) -> bool:
    """Remove an image of ours by its name or, the only name that it has included, by its id. Whether it is gone: one
    that something still uses stays, and that is not a problem. Blocks. Raises SandboxError."""
    with engine_errors(f"can't remove the image {image}"):
        try:
            client.remove_image(image)
        except Refused as error:
            if error.status not in (404, 409):
                raise
            return error.status == 404
    return True
