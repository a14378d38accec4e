"""How a sandbox's directories get into its containers and back: mounted where the engine shares our file system, else
copied in before each start and out after each end.

Both give the same paths inside as outside. HOME and TMPDIR lie together in one private directory.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import tarfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from keystone_action.engine import archives
from keystone_action.engine.archives import TooLarge, fetch_archive, layer_size, move_below, put_archive, unpack
from keystone_action.engine.container import Mount
from keystone_action.errors import SandboxError
from keystone_action.files.disk_usage import TooDeep, human, tree_size
from keystone_action.files.removal import remove_tree
from keystone_action.sandbox import trees
from keystone_action.sandbox.protocol import Home, Wanted
from keystone_action.sandbox.users import Lease

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient

HOME, TEMPORARY = "home", "tmp"
_MOST_UNLIMITED = 16 << 30
"""Bytes that come back of a workspace without a limit: a file of nothing but a hole can claim any size, and takes as
long to copy as if it were full."""
_SPARE = 64 << 20
_TOO_DEEP = "disk: directories nested too deeply to be watched"
_LONGEST_PATH = 4096 - 256 - 256
"""Bytes of the path of a directory in a container that is known to come back whole. An engine leaves out of an archive,
in silence, what it can't name: of the 4,096 bytes that the kernel takes, a name in the directory may need 256, and 256
are for where an engine keeps the files of containers."""
_TOO_LONG = (
    f"the workspace was left with paths of more than {_LONGEST_PATH:,} bytes: the engine leaves out what lies deeper "
    "when the workspace is copied out of its container"
)


@dataclass(frozen=True, slots=True)
class ContainerPlaces:
    """Real paths of a sandbox."""

    workspace: Path
    private: Path
    """What holds HOME and TMPDIR."""
    readable: tuple[Path, ...] = ()
    """What else it may read."""
    has_home: bool = False
    """Whether there is a HOME already, kept from another sandbox."""

    @property
    def all(self) -> tuple[Path, ...]:
        return (self.workspace, self.private, *self.readable)

    @property
    def of_user(self) -> tuple[Path, Path]:
        """HOME and TMPDIR."""
        return self.private / HOME, self.private / TEMPORARY


class Transfer(Protocol):
    """How files get into a container and out of it. All of it blocks."""

    user: int
    """Who runs inside."""
    mounts: tuple[Mount, ...]
    """What containers are made with."""
    loss: str
    """Why we don't have the workspace as it was left; empty when we have."""

    def prepare(self, container: str, extras: Sequence[Iterable[bytes]]) -> None:
        """Before the start. extras: further pieces of an archive that go to the container's root."""

    def look(self, container: str) -> str | None:
        """The sentence for the disk limit once it is reached."""

    def fetch(self, container: str) -> str | None:
        """After the end: see that we have what it left; a sentence when that is more than comes back."""

    def collect(self, container: str) -> str | None:
        """`fetch_archive`, and the sentence for the disk limit if that was reached."""

    def holds_only_caches(self) -> bool:
        """Whether HOME and TMPDIR, as far as fetched, hold nothing but caches."""

    def stop(self) -> None:
        """From any thread: break off what is being copied, until the next `prepare`; the thread that copies raises
        SandboxError."""

    def close(self) -> None:
        """Remove HOME and TMPDIR; the workspace stays, its owner's. Never raises."""

    def close_but_home(self) -> Home:
        """`close`, but HOME stays, for another transfer of its kind with these places. Never raises."""


def disk_sentence(used: int, allowed: int) -> str | None:
    """The sentence for a disk limit that is reached, else None."""
    return f"disk: {human(used)} used, {human(allowed)} allowed" if used >= allowed else None


class MountedDirectory:
    """By bind mounts. sources: where the engine's machine has each of the places, in their order."""

    def __init__(
        self,
        client: EngineClient,
        places: ContainerPlaces,
        sources: Sequence[str],
        user: int,
        lease: Lease | None,
        disk: int | None,
    ) -> None:
        self.user, self.loss = user, ""
        pairs = list(zip(places.all, sources, strict=True))
        self.mounts = tuple(Mount(source, str(path), read_only=path in places.readable) for path, source in pairs)
        self._client = client
        self._places = places
        self._lease = lease
        self._disk = disk
        status = places.workspace.stat()
        self._owner = (status.st_uid, status.st_gid)
        places.private.mkdir(mode=0o711, exist_ok=places.has_home)
        for path in places.of_user:
            path.mkdir(mode=0o700, exist_ok=places.has_home)
        self._give(user)
        if lease is not None:
            places.workspace.chmod(0o700)

    def _give(self, user: int) -> None:
        if self._lease is not None:
            # What holds HOME and TMPDIR stays ours: they can't be replaced by links.
            trees.give(self._places.workspace, user, *self._places.of_user)

    def prepare(self, container: str, extras: Sequence[Iterable[bytes]]) -> None:
        """See `Transfer`."""
        if extras:
            put_archive(self._client, container, itertools.chain(*extras))

    def look(self, container: str) -> str | None:
        """See `Transfer`."""
        if self._disk is None:
            return None
        roots = [str(self._places.workspace), str(self._places.private)]
        try:
            below = next(size for size in tree_size(roots) if size is not None)
            # The engine takes long to answer.
            reached = disk_sentence(below, self._disk)
            return reached or disk_sentence(below + layer_size(self._client, container), self._disk)
        except TooDeep:
            return _TOO_DEEP

    def fetch(self, container: str) -> str | None:  # noqa: ARG002 - there is nothing to fetch
        """See `Transfer`."""
        return None

    def collect(self, container: str) -> str | None:
        """See `Transfer`."""
        return self.look(container)

    def holds_only_caches(self) -> bool:
        """See `Transfer`."""
        return _only_caches(entry.name for place in self._places.of_user for entry in place.iterdir())

    def stop(self) -> None:
        """See `Transfer`. Nothing is copied."""

    def close(self) -> None:
        """See `Transfer`."""
        remove_tree(self._places.private)
        self._take_back()

    def close_but_home(self) -> Home:
        """See `Transfer`."""
        home, temporary = self._places.of_user
        remove_tree(temporary)
        if self._lease is not None:
            trees.take_back(home, self._lease.uid)
        self._take_back()
        copy = partial(trees.copy_wanted, home)
        return Home(self._places.private, partial(remove_tree, self._places.private), copy)

    def _take_back(self) -> None:
        if self._lease is not None:
            try:
                trees.give(self._places.workspace, self._owner[0])
                os.chown(self._places.workspace, *self._owner)
            except OSError:
                # Gone or made unreadable: it is closed to the user, at least, who may be somebody else's next.
                trees.take_back(self._places.workspace, self._lease.uid)
            self._lease.release()


class CopiedDirectory:
    """By archives. missing_parents: directories above the places that the image lacks, the highest first."""

    def __init__(
        self, client: EngineClient, places: ContainerPlaces, missing_parents: Sequence[str], user: int, disk: int | None
    ) -> None:
        self.user, self.loss = user, ""
        self.mounts: tuple[Mount, ...] = ()
        self._client = client
        self._places = places
        self._parents = missing_parents
        self._disk = disk
        self._saved = places.private.with_name(f"{places.private.name}.tar")
        self._stopped = False
        if places.has_home and self._saved.exists():
            self._remove_temporary()

    def prepare(self, container: str, extras: Sequence[Iterable[bytes]]) -> None:
        """See `Transfer`."""
        self._stopped = False
        put_archive(self._client, container, self._until_stopped(itertools.chain(self._layout(), *extras)))
        if self._saved.exists():
            put_archive(self._client, container, self._until_stopped(_read(self._saved)))

    def _layout(self) -> Iterator[bytes]:
        yield from archives.directories(parent.lstrip("/") for parent in self._parents)
        yield from _pack(self._places.workspace, self.user)
        for path in self._places.readable:
            # Root's, so that the agent can't write there.
            yield from _pack(path, 0)
        if not self._saved.exists():
            private = _name(self._places.private)
            yield from archives.directories([private])
            for name in (HOME, TEMPORARY):
                yield archives.directory(f"{private}/{name}", 0o700, self.user)

    def look(self, container: str) -> str | None:
        """See `Transfer`."""
        if self._disk is None:
            return None
        try:
            return disk_sentence(layer_size(self._client, container), self._disk)
        except TooDeep:
            return _TOO_DEEP

    def collect(self, container: str) -> str | None:
        """See `Transfer`."""
        reached = self.look(container)
        problem = self.fetch(container)
        return reached or problem

    def fetch(self, container: str) -> str | None:
        """See `Transfer`."""
        most = self._disk or _MOST_UNLIMITED
        # Many small files take several times their size as an archive.
        limit = 4 * most + _SPARE
        try:
            self._take_workspace(container, most, limit)
            self._save(container, limit)
        except TooLarge:
            return f"disk: what is left to copy out is larger than {human(most)}"
        except OSError as error:
            raise SandboxError(f"can't copy the workspace out of its container: {error}") from error
        return f"paths: {self.loss}" if self.loss else None

    def _take_workspace(self, container: str, most: int, limit: int) -> None:
        """What can't be had must not be taken for what was there before: `loss` says so."""
        self.loss = f"the workspace was left larger than the {human(most)} that are copied out of its container"
        if self._disk is None and self._claims_more(container, most):
            raise TooLarge
        with contextlib.closing(self._get(container, self._places.workspace)) as pieces:
            below = unpack(pieces, self._places.workspace, limit=limit)
        self.loss = _TOO_LONG if len(os.fsencode(self._places.workspace)) + 1 + below > _LONGEST_PATH else ""

    def _claims_more(self, container: str, most: int) -> bool:
        try:
            return layer_size(self._client, container) > most
        except TooDeep:
            return False

    def holds_only_caches(self) -> bool:
        """See `Transfer`."""
        with tarfile.open(self._saved, encoding="utf-8", errors="surrogateescape") as archive:
            # Each is `<private>/home/name/…`.
            private = f"{_name(self._places.private)}/"
            infos = archives.entries_of(archive)
            below = (info.name.removeprefix(private) for info in infos if info.name.startswith(private))
            parts = (name.split("/") for name in below)
            return _only_caches(each[1] for each in parts if len(each) > 1)

    def _get(self, container: str, path: Path) -> Generator[bytes, None, None]:
        with contextlib.closing(fetch_archive(self._client, container, str(path))) as pieces:
            yield from self._until_stopped(pieces)

    def stop(self) -> None:
        """See `Transfer`."""
        self._stopped = True

    def _until_stopped(self, pieces: Iterable[bytes]) -> Generator[bytes, None, None]:
        """An agent may leave more files than there is time for once a run is cancelled."""
        for piece in pieces:
            if self._stopped:
                raise SandboxError("the sandbox was closed while its files were copied")
            yield piece

    def _save(self, container: str, limit: int) -> None:
        """Keep HOME and TMPDIR as an archive: only a container ever unpacks it."""
        unfinished = self._saved.with_suffix(".part")
        above = _name(self._places.private.parent)
        with unfinished.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            with contextlib.closing(self._get(container, self._places.private)) as pieces:
                archive = move_below(pieces, above, limit=limit)
                file.writelines(archives.in_chunks(archive))
        unfinished.replace(self._saved)

    def close(self) -> None:
        """See `Transfer`."""
        for path in (self._saved, self._saved.with_suffix(".part")):
            path.unlink(missing_ok=True)

    def close_but_home(self) -> Home:
        """See `Transfer`. TMPDIR is taken out when another one begins with it."""
        return Home(self._places.private, self.close, self._copy_home)

    def _copy_home(self, destination: Path, wanted: Wanted) -> tuple[str, ...]:
        if not self._saved.exists():
            return ("",)
        try:
            with tarfile.open(self._saved, encoding="utf-8", errors="surrogateescape") as archive:
                return _copy_files(archive, f"{_name(self._places.private / HOME)}/", destination, wanted)
        except tarfile.TarError as error:
            raise SandboxError(f"a kept HOME can't be read: {error}") from error

    def _remove_temporary(self) -> None:
        """What was saved of another sandbox is its HOME alone. Raises SandboxError."""
        unfinished = self._saved.with_suffix(".part")
        temporary = _name(self._places.private / TEMPORARY)
        try:
            with unfinished.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                archive = move_below(_read(self._saved), "", limit=None, leave_out=temporary)
                file.writelines(archives.in_chunks(archive))
            unfinished.replace(self._saved)
        except OSError as error:
            raise SandboxError(f"a kept HOME can't be written: {error}") from error


def _copy_files(archive: tarfile.TarFile, top: str, destination: Path, wanted: Wanted) -> tuple[str, ...]:
    """The folders and regular files below `top` that are wanted, another name of such a file as a copy of it. Returns
    the paths of what could not be had. Nothing is held of what is not wanted."""
    entered, files, missing = {""}, dict[str, Path](), list[str]()
    for info in archives.entries_of(archive):
        path = info.name.removeprefix(top).rstrip("/")
        above = path.rpartition("/")[0]
        if not info.name.startswith(top) or not path or ".." in path.split("/") or above not in entered:
            continue
        if not (info.isdir() or info.isreg() or info.islnk()):
            continue
        # Not of an earlier name that is not copied, which may be anywhere in HOME.
        first = files.get(info.linkname) if info.islnk() else None
        size = None if info.isdir() else first.stat().st_size if first is not None else info.size
        if not wanted(path, size):
            continue
        try:
            if info.isdir():
                (destination / path).mkdir()
                entered.add(path)
            elif info.islnk() and first is None:
                missing.append(path)
            else:
                _write_copy(archive.extractfile(info) if first is None else first.open("rb"), destination / path)
                files[info.name] = destination / path
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            missing.append(path)
    return tuple(missing)


def _write_copy(content: IO[bytes] | None, path: Path) -> None:
    assert content is not None  # of a regular file
    with content, path.open("xb") as copy:
        shutil.copyfileobj(content, copy)


def _only_caches(names: Iterable[str]) -> bool:
    """Of package managers: what is in them decides how long something takes, not what comes of it."""
    return all(name in {".cache", ".npm"} for name in names)


def _pack(path: Path, user: int) -> Iterator[bytes]:
    try:
        yield from archives.tree(path, _name(path), user)
    except OSError as error:
        raise SandboxError(f"can't copy {path} into a container: {error}") from error


def _name(path: Path) -> str:
    return str(path).lstrip("/")


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece
