"""What a spec's `setup` does in an image (spec 1.1 and 5.2): `setup.packages` and `setup.commands`, as root.

Installed packages become an image that is named by its content, so that the next cell, run or pull request with the
same packages finds it. Commands run in the cell's own workspace, all in one container: what they change of the
workspace, HOME and TMPDIR is there for the sandbox as if its own user had done it. What they change of the system
becomes an image: the cell's own, or one that is found again, where nothing but the commands and what they were given
can have decided what is in it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shlex
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.engine import archives
from keystone_action.engine.archives import put_archive
from keystone_action.engine.container import ContainerPlan, ContainerRun, exit_code
from keystone_action.engine.images import (
    Image,
    commit_kept,
    commit_own,
    find_layer,
    layer_digest,
    layer_holds,
    learned,
    list_layer_changes,
    remove_image,
)
from keystone_action.errors import HarnessError, SandboxError
from keystone_action.files.descent import walk_down
from keystone_action.files.snapshot import PATHS_LIMIT
from keystone_action.sandbox.containers.sandbox import WORKSPACE_LINK, DockerSandbox, must_be_text
from keystone_action.sandbox.containers.shared import SharedEngine
from keystone_action.system.command import Completed, shown_command

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient

SCRIPT_FILE = "/.keystone-setup"
OPEN_NETWORK = "bridge"
"""The engine's own: where installers find their registries; the agent's policy does not hold for it."""
_PACKAGES_VERSION = 2
"""Of what the script does with the same input."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# The packages are the script's arguments; each list is what remains of them after one turn.
_PACKAGES = r"""
export DEBIAN_FRONTEND=noninteractive PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore
if command -v apt-get >/dev/null; then
  apt-get update -qq || fail "setup.packages: apt-get update failed"
  known() { apt-cache show -- "$1" >/dev/null 2>&1; }
  install() { apt-get install -y -qq --no-install-recommends -- "$@" && rm -rf /var/lib/apt/lists/*; }
elif command -v apk >/dev/null; then
  known() { [ -n "$(apk --update-cache search -qe -- "${1%%[=<>~]*}")" ]; }
  install() { apk --update-cache add --quiet -- "$@"; }
else
  known() { false; }
fi
pip() { python3 -m pip --disable-pip-version-check "$@"; }
manager() {
  case $1 in
    *==* | *">="* | *"<="* | *"~="* | *"!="* | *"["* | *@*) echo pip ;;
    *) if known "$1"; then echo system; else echo pip; fi ;;
  esac
}
python=
for package; do
  if [ "$(manager "$package")" = pip ]; then python="$python $package"; fi
done
if [ -n "$python" ] && ! pip --version >/dev/null 2>&1; then
  fail "setup.packages: the image's package manager does not know$python, and it has no pip that could"
fi
for which in pip system; do
  (
    turns=$#
    while [ "$turns" -gt 0 ]; do
      turns=$((turns - 1)) package=$1
      shift
      if [ "$(manager "$package")" = "$which" ]; then set -- "$@" "$package"; fi
    done
    [ $# -gt 0 ] || exit 0
    case $which in
      system) install "$@" ;;
      pip) pip install --quiet --no-input --no-cache-dir -- "$@" ;;
    esac || fail "setup.packages: could not install $*"
  ) || exit 1
done
"""


async def with_packages_layer(
    engine: SharedEngine,
    image: Image,
    packages: Sequence[str],
    env: Mapping[str, str],
    *,
    network: str = OPEN_NETWORK,
    timeout: float | None = None,
) -> Image:
    """The image with these packages installed, made now or found as made before.

    env reaches installers, and stays neither in the image nor in its description. timeout: seconds for all of it.
    Raises HarnessError with the end of both streams when they can't be installed; SandboxError.
    """
    if not packages:
        return image
    digest = layer_digest("packages", _PACKAGES_VERSION, image.identifier, list(packages), sorted(env.items()))
    async with engine.layers.setdefault(digest, asyncio.Lock()):
        find = partial(find_layer, engine.client, image, digest, engine.found_layers)
        found = await engine.thread(find)
        if found is not None:
            return found
        done = await engine.execute(_run(engine, image, _script(packages, env), digest, network, timeout))
        if not done.succeeded:
            told = done.failure()
            raise HarnessError(f"setup.packages could not be installed in {image.name}: {told}")
        found = await engine.thread(find)
        if found is None:
            raise SandboxError(f"what setup.packages made of {image.name} is gone again: did somebody remove images?")
        return found


def _script(packages: Sequence[str], env: Mapping[str, str]) -> bytes:
    """Removes itself first: what env holds must not stay in the image."""
    lines = [
        f"rm -f {SCRIPT_FILE}",
        "set -u",
        "export HOME=/root LANG=C.UTF-8",
        'fail() { printf "\\nkeystone: %s\\n" "$1" >&2; exit 1; }',
        *exports(env),
        f"set -- {shlex.join(packages)}",
        _PACKAGES,
    ]
    return ("\n".join(lines) + "\n").encode()


def _run(
    engine: SharedEngine,
    image: Image,
    script: bytes,
    digest: str,
    network: str,
    timeout: float | None,
) -> ContainerRun:
    plan = ContainerPlan(
        image=image.identifier,
        argv=("/bin/sh", SCRIPT_FILE),
        user=0,
        directory="/",
        labels=engine.labels,
        network=network,
        init=image.init,
    )

    def prepare(container: str) -> None:
        put_archive(engine.client, container, archives.small_file(SCRIPT_FILE.lstrip("/"), script, 0o600))

    def collect(container: str) -> None:
        if exit_code(engine.client, container) == 0:
            commit_kept(engine.client, image, container, digest)

    return ContainerRun(engine.client, plan, timeout=timeout, prepare=prepare, collect=collect)


def exports(env: Mapping[str, str]) -> list[str]:
    """Lines for a shell. It could not be told names of another form, nor would all shells hand them on."""
    return [f"export {name}={shlex.quote(value)}" for name, value in env.items() if _NAME.fullmatch(name)]


_COMMANDS_VERSION = 1
"""Of what is done with the same commands."""


_SMALL = 1 << 20

Entries = dict[str, tuple[int, int, int, str] | tuple[int, str] | int]


@dataclass(frozen=True, slots=True)
class SetupCommands:
    """Commands of a setup, and what they run with."""

    texts: tuple[str, ...]
    """For `sh -c`, in their order."""
    env: Mapping[str, str]
    """Added to what the sandbox was opened with."""
    networks: tuple[str, ...]
    """Of the engine; the container is in all of them."""
    extra_hosts: Mapping[str, str] = field(default_factory=dict)
    dns: tuple[str, ...] = ()
    timeout: float | None = None
    """Seconds for all of them together."""
    fingerprint: Callable[[], str] | None = None
    """Of the workspace's content, as text that is the same for the same content; None where services or fixtures could
    decide what the commands do."""
    secrets: Collection[str] = ()
    """Values that no image may keep."""


@dataclass(frozen=True, slots=True)
class SetupImage:
    """The image that a sandbox is in after its commands."""

    image: Image
    own: bool
    """Whether it was made for this sandbox alone; others use it, too, otherwise."""


async def run_setup_commands(engine: SharedEngine, sandbox: DockerSandbox, commands: SetupCommands) -> SetupImage:
    """Run them; the sandbox's next commands see everything that they left.
    Raises HarnessError with the end of both streams for the first command that fails; SandboxError."""
    if commands.fingerprint is None:
        return await _SetupRun(engine, sandbox, commands).run()
    content = await engine.thread(commands.fingerprint)
    told = _command_environment(sandbox, commands)
    digest = layer_digest("commands", _COMMANDS_VERSION, sandbox.image.identifier, commands.texts, told, content)
    async with engine.layers.setdefault(digest, asyncio.Lock()):
        # A cell that waited for an image which could not be kept must not wait for the next one too.
        if digest not in engine.setups_not_kept:
            found = await engine.thread(partial(find_layer, engine.client, sandbox.image, digest, engine.found_layers))
            if found is not None:
                return SetupImage(sandbox.move(found), own=False)
            running = _SetupRun(engine, sandbox, commands, digest, content)
            made = await running.run()
            if made.own:
                engine.setups_not_kept.add(digest)
            return made
    return await _SetupRun(engine, sandbox, commands).run()


def _command_environment(sandbox: DockerSandbox, commands: SetupCommands) -> list[tuple[str, str]]:
    """What commands find in their environment, the same for every cell: without where its directories are."""
    told = {**sandbox.environment, **commands.env}
    for number, place in enumerate(sandbox.places.all):
        told = {name: value.replace(str(place), f"<{number}>") for name, value in told.items()}
    return sorted(told.items())


def _entries(workspace: Path) -> Entries | None:
    """All entries with what tells of a change; None = they can't be read. Contents, which `fingerprint` knows of all
    else, of small files of `.git` alone, and not of its objects: their names tell what they hold."""
    found: Entries = {}
    size = 0
    try:
        for directory, folder, entries in walk_down(workspace):
            above = directory.split("/")
            for entry in entries:
                told = ".git" in (*above, entry.name) and "objects" not in above
                found[f"{directory}/{entry.name}"] = _entry(entry, folder, with_content=told)
                size += len(directory) + len(entry.name)
            if size > PATHS_LIMIT:
                return None
    except OSError:
        return None
    return found


def _entry(
    entry: os.DirEntry[str], folder: int, *, with_content: bool
) -> tuple[int, int, int, str] | tuple[int, str] | int:
    status = entry.stat(follow_symlinks=False)
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        return mode, os.readlink(entry.name, dir_fd=folder)
    if not stat.S_ISREG(mode):
        return mode
    content = ""
    if with_content and status.st_size <= _SMALL:
        with os.fdopen(os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
            content = hashlib.sha256(file.read(_SMALL)).hexdigest()
    return mode, status.st_size, status.st_mtime_ns, content


class _SetupRun:
    """One run of the commands. digest: by which the result may be kept. content: the fingerprint before."""

    def __init__(
        self,
        engine: SharedEngine,
        sandbox: DockerSandbox,
        commands: SetupCommands,
        digest: str | None = None,
        content: str | None = None,
    ) -> None:
        self._kept = False
        self._engine = engine
        self._sandbox = sandbox
        self._commands = commands
        self._digest = digest
        self._content = content
        self._before: Entries | None = None
        self._mark = f"keystone-{secrets.token_hex(8)}"
        self._image_id: str | None = None

    async def run(self) -> SetupImage:
        """See `run_setup_commands`."""
        try:
            async with self._sandbox.turn:
                if self._digest is not None:
                    self._before = await self._engine.thread(partial(_entries, self._sandbox.workspace))
                done = await self._sandbox.run_container(self._container())
            self._must_have_worked(done)
            if self._image_id is None:
                return SetupImage(self._sandbox.image, own=False)
            made = self._image_id
            image = await self._engine.thread(partial(learned, self._engine.client, self._sandbox.image, made))
            return SetupImage(self._sandbox.move(image), own=not self._kept)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._undo()
            raise

    async def _undo(self) -> None:
        try:
            await self._sandbox.give_back()
            if self._image_id is not None and not self._kept:
                await self._engine.thread(partial(remove_image, self._engine.client, self._image_id))
        except SandboxError:
            return  # what went wrong before is what is told; labels find the rest

    def _container(self) -> ContainerRun:
        sandbox, commands = self._sandbox, self._commands
        places = tuple(map(str, sandbox.places.all))
        plan = ContainerPlan(
            image=sandbox.image.identifier,
            argv=("/bin/sh", SCRIPT_FILE),
            user=0,
            # An image takes the directory and the environment of the container that it is made of.
            directory="/",
            labels=self._engine.labels,
            limits=sandbox.limits,
            mounts=sandbox.transfer.mounts,
            # What is copied in must not be in the container's own layer.
            volumes=() if sandbox.transfer.mounts else places,
            network=commands.networks[0] if commands.networks else "none",
            networks=commands.networks[1:],
            extra_hosts=commands.extra_hosts,
            dns=commands.dns,
            init=sandbox.image.init,
        )
        extras = [*sandbox.extras(), archives.small_file(SCRIPT_FILE.lstrip("/"), self._script(), 0o600)]
        return ContainerRun(
            self._engine.client,
            plan,
            timeout=commands.timeout,
            prepare=lambda container: sandbox.transfer.prepare(container, extras),
            collect=self._collect,
            on_stop=sandbox.transfer.stop,
        )

    def _script(self) -> bytes:
        """Removes itself first: what env holds must not stay in the image."""
        sandbox = self._sandbox
        environment = {**sandbox.environment, **self._commands.env}
        must_be_text(self._commands.texts, environment)
        theirs = shlex.join(map(str, (sandbox.places.workspace, *sandbox.places.of_user)))
        user = sandbox.transfer.user
        lines = [
            f"rm -f {SCRIPT_FILE}",
            # git, ssh and npm look at whose the files are that they are told to trust.
            f"chown -hR 0:0 {theirs}",
            f"cd {shlex.quote(sandbox.workspace_inside)} || exit",
            f'end() {{ cd /; chown -hR {user}:{user} {theirs}; exit "$1"; }}',
            "run() (",
            f"printf '\\n{self._mark} %s\\n' \"$1\"; printf '\\n{self._mark} %s\\n' \"$1\" >&2",
            *exports(environment),
            'exec /bin/sh -c "$2" </dev/null',
            ")",
            *(f"run {index} {shlex.quote(text)} || end $?" for index, text in enumerate(self._commands.texts)),
            *([f"[ ! -L {WORKSPACE_LINK} ] || rm {WORKSPACE_LINK}"] if sandbox.link else []),
            "end 0",
        ]
        return ("\n".join(lines) + "\n").encode()

    def _collect(self, container: str) -> str | None:
        """After the end, in the container's own thread."""
        client, sandbox = self._engine.client, self._sandbox
        problem = sandbox.transfer.fetch(container)
        if problem is not None or exit_code(client, container) != 0:
            return problem
        ours = {*map(str, sandbox.places.all), *([WORKSPACE_LINK] if sandbox.link else [])}
        changed = list_layer_changes(client, container, ours)
        if changed is not None and not self._keep(client, container, changed):
            self._image_id = commit_own(client, sandbox.image, container, self._engine.labels)
        return None

    def _keep(self, client: EngineClient, container: str, changed: list[str]) -> bool:
        """Make it an image that is found again, if it says nothing of this cell and nothing else was done."""
        sandbox = self._sandbox
        if self._digest is None or self._before is None or not sandbox.transfer.holds_only_caches():
            return False
        if _entries(sandbox.workspace) != self._before or not self._is_same_content():
            return False
        needles = [*map(str, sandbox.places.all), *self._commands.secrets]
        self._image_id = commit_kept(
            client,
            sandbox.image,
            container,
            self._digest,
            proven=lambda made: not layer_holds(client, sandbox.image, made, changed, needles),
        )
        self._kept = self._image_id is not None
        return self._kept

    def _is_same_content(self) -> bool:
        """A file may be another at its old length and time. Of `.git` this knows the commit alone: `_entries`
        sees small files, but not an object or a large file (an index of more than 1 MiB) that is another so."""
        return self._commands.fingerprint is not None and self._commands.fingerprint() == self._content

    def _must_have_worked(self, done: Completed) -> None:
        """Raises HarnessError. Which command it was is said by what was printed before each; only the output of that
        one is told."""
        if done.succeeded:
            return
        mark = re.compile(rf"\n{self._mark} (\d+)\n")
        streams = [mark.split(capture.text()) for capture in (done.stdout, done.stderr)]
        begun = [int(parts[-2]) for parts in streams if len(parts) > 1]
        where = "setup.commands"
        if begun:
            where = f"setup.commands[{max(begun)}] (`{shown_command(self._commands.texts[max(begun)])}`)"
        raise HarnessError(
            f"{where} failed in {self._sandbox.image.name}: {done.failure(streams[0][-1], streams[1][-1])}"
        )
