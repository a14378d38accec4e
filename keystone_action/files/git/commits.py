"""What is in a commit, read from a checkout that we don't trust, and a copy of the checkout for the author's scripts.

Nothing of the checkout but its objects is used: an empty repository of our own borrows them, so that no configuration,
attribute, hook, filter or text conversion of the checkout has a say, and nothing is written to it. What it lacks is
fetched into that repository, over the network, from an address that the caller gives.
"""

from __future__ import annotations

import base64
import os
import posixpath
import re
import stat
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from keystone_action.errors import HarnessError, UsageError
from keystone_action.files.copies import copy_entries
from keystone_action.files.git import commands as git
from keystone_action.files.git import history as git_history
from keystone_action.spec.walking import walk

FETCH_SECONDS = 120.0
MAX_FILE = 64 << 20
"""Bytes of one file."""
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_LINKS = 40
_BLOBS, _LINK, _SUBMODULE = ("100644", "100755", "100664"), "120000", b"160000"


class NoCheckout(git.GitFailed):
    """A directory that is not the top of a git checkout."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a commit can be fetched from."""

    url: str
    """http(s), ssh or a path."""
    token: str = field(default="", repr=False)
    """For http(s); sent to that server only."""
    ca_bundle: str = field(default="", repr=False)
    """Certificates to trust besides the system's, as PEM."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One file or link of a tree. size in bytes."""

    id: str
    size: int
    is_link: bool
    is_executable: bool


class Tree:
    """The files of a commit by their paths, relative to the top of the repository and with `/`. Submodules have none;
    they are in `submodules`, by path, with their commits. followed: the links that `resolved` went through so far.

    Methods raise git.GitFailed when an object is missing.
    """

    def __init__(self, repository: Path, extra: Mapping[str, str], sha: str) -> None:
        self.sha = sha
        self._repository, self._extra = repository, extra
        self._contents: dict[str, bytes] = {}
        self.followed: dict[str, None] = {}
        listing = git.run_git("ls-tree", "-r", "-z", "-l", "--full-tree", sha, directory=repository, extra=extra)
        self.entries = dict(filter(None, map(_entry, listing.split(b"\0"))))
        self.submodules = submodules_of(listing)
        self.folders = {parent for path in self.entries for parent in _parents(path)}

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """The bytes of files, of links where they lead, by path. Raises GitFailed for one above MAX_FILE too."""
        wanted = list(dict.fromkeys(paths))
        too_large = next((path for path in wanted if self.entries[path].size > MAX_FILE), None)
        if too_large is not None:
            size = self.entries[too_large].size
            raise git.GitFailed(f"{too_large} has {size:,} bytes; at most {MAX_FILE:,} are read")
        missing = [path for path in wanted if path not in self._contents]
        if missing:
            asked = "".join(f"{self.entries[path].id}\n" for path in missing).encode()
            answer = git.run_git("cat-file", "--batch", directory=self._repository, extra=self._extra, stdin=asked)
            self._contents.update(zip(missing, _blobs(answer, len(missing)), strict=True))
        return {path: self._contents[path] for path in wanted}

    def resolve(self, path: str) -> str | None:
        """Where a path leads, links on the way followed; None where there is nothing, or it leads out of the tree."""
        done = self._follow(path)
        return done if done is not None and (done in self.entries or done in self.folders or not done) else None

    def in_submodule(self, path: str) -> tuple[str, str] | None:
        """Where a path leads, links on the way followed, and the submodule that this is in or is; None where it leads
        into none."""
        done = self._follow(path)
        around = () if done is None else (done, *_parents(done))
        return next(((done, one) for one in around if done is not None and one in self.submodules), None)

    def _follow(self, path: str) -> str | None:
        waiting, done, links = [part for part in path.split("/") if part], "", 0
        while waiting:
            part = waiting.pop(0)
            joined = posixpath.normpath(posixpath.join(done, part))
            if joined == ".." or joined.startswith("../"):
                return None
            done = "" if joined == "." else joined
            entry = self.entries.get(done)
            if entry is not None and entry.is_link:
                links += 1
                self.followed.setdefault(done)
                target = os.fsdecode(self.read([done])[done])
                if links > _MAX_LINKS or target.startswith("/"):
                    return None
                waiting = [*target.split("/"), *waiting]
                waiting = [step for step in waiting if step]
                done = posixpath.dirname(done)
        return done

    def below(self, folder: str) -> list[str]:
        """All files and links below a folder; `""` is the top."""
        return [path for path in self.entries if not folder or path.startswith(f"{folder}/")]

    def write(self, paths: Iterable[str], top: Path, *, settings: Mapping[str, str] | None = None) -> None:
        """Write files and links below `top`, where they are not yet, as a checkout would: with the line ends that the
        attributes of this very commit, and these settings, ask for. A path that a link was written in the way of is
        left out: nothing is written through links. Raises OSError too."""
        new = [path for path in dict.fromkeys(paths) if not os.path.lexists(top / path)]
        contents = self.read(new)
        if settings or any(posixpath.basename(path) == ".gitattributes" for path in self.entries):
            contents |= self._checked_out([path for path in new if not self.entries[path].is_link], settings or {})
        # Links last: no file of the same call can be led astray by one.
        for path, content in sorted(contents.items(), key=lambda item: self.entries[item[0]].is_link):
            place = top / path
            if place.parent.resolve() != place.parent and place.parent.exists():
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if self.entries[path].is_link:
                place.symlink_to(os.fsdecode(content))
                continue
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            mode = 0o755 if self.entries[path].is_executable else 0o644
            with os.fdopen(os.open(place, flags, mode), "wb") as file:
                file.write(content)

    def _checked_out(self, paths: Sequence[str], settings: Mapping[str, str]) -> dict[str, bytes]:
        """The bytes of files as git would write them; programs that filter run only where a configuration names them,
        and ours names none."""
        if not paths:
            return {}
        with tempfile.TemporaryDirectory(prefix="checked-out-", dir=self._repository) as folder:
            work = Path(folder).resolve()
            place = {"GIT_DIR": str(self._repository.resolve()), "GIT_WORK_TREE": folder}
            extra = {**self._extra, **place, "GIT_INDEX_FILE": f"{folder}.index"}
            options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
            try:
                git.run_git("read-tree", self.sha, directory=work, extra=extra)
                asked = b"".join(os.fsencode(path) + b"\0" for path in paths)
                git.run_git(*options, "checkout-index", "-q", "-z", "--stdin", directory=work, extra=extra, stdin=asked)
            finally:
                Path(f"{folder}.index").unlink(missing_ok=True)
            return {path: (work / path).read_bytes() for path in paths}


def open_commit(checkout: Path, sha: str, private: Path, remote: Remote | None = None) -> Tree:
    """The tree of a commit of the repository that is checked out in a directory.

    private: an empty directory of ours, for our own repository. remote: where to fetch the commit from when the
    checkout lacks it (a shallow or partial one). Raises git.GitFailed with what is missing, or what the fetch said.
    """
    if not _SHA.fullmatch(sha):
        raise git.GitFailed(f"{sha[:80]!r} is not the full name of a commit")
    form = "sha1" if len(sha) == 40 else "sha256"
    git.run_git("init", "-q", "--bare", "--template=", f"--object-format={form}", ".", directory=private)
    if not (checkout / ".git").exists():
        raise NoCheckout(f"{checkout} is not a git checkout")
    try:
        found = git.run_git("rev-parse", "--path-format=absolute", "--git-path", "objects", directory=checkout)
        extra = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": _quote_path(os.fsdecode(found.rstrip(b"\n")))}
        return Tree(private, extra, sha)
    except git.GitFailed as lacking:
        if remote is None:
            raise git.GitFailed(f"the checkout does not have it ({_last_line(lacking)})") from None
    try:
        fetch_commit(private, sha, remote)
        return Tree(private, {}, sha)
    except git.GitFailed as failed:
        where = git.without_credentials(remote.url)
        raise git.GitFailed(
            f"the checkout does not have it, and fetching it from {where} failed ({_last_line(failed)})"
        ) from None


def fetch_commit(repository: Path, sha: str, remote: Remote) -> None:
    """One commit without its history. The token is in no argument list. Raises git.GitFailed."""
    extra: dict[str, str] = {}
    if remote.token and remote.url.startswith(("https://", "http://")):
        login = base64.b64encode(f"x-access-token:{remote.token}".encode()).decode()
        # The server that a redirect leads to must not see it.
        settings = {f"http.{remote.url}.extraHeader": f"AUTHORIZATION: basic {login}", "http.followRedirects": "false"}
        extra = {"GIT_CONFIG_COUNT": str(len(settings))}
        for number, (name, value) in enumerate(settings.items()):
            extra |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    if remote.ca_bundle:
        extra["GIT_SSL_CAINFO"] = str(_bundle_certificates(repository, remote.ca_bundle))
    options = ("-q", "--no-tags", "--no-recurse-submodules", "--depth=1", "--no-write-fetch-head")
    git.run_git("fetch", *options, "--", remote.url, sha, directory=repository, extra=extra, timeout=FETCH_SECONDS)


def _bundle_certificates(folder: Path, ca_bundle: str) -> Path:
    """One file with the system's certificates and these: git takes a file in place of the system's."""
    import ssl

    own = ssl.get_default_verify_paths().cafile
    path = folder / "trusted.pem"
    path.write_text((Path(own).read_text("utf-8", "replace") if own else "") + f"\n{ca_bundle}\n", "utf-8")
    return path


def _entry(line: bytes) -> tuple[str, TreeEntry] | None:
    """One line of the listing; None for a submodule, and for names that no checkout could write. Raises GitFailed."""
    facts, _, name = line.partition(b"\t")
    mode, _, identity, size = (facts.decode("ascii").split() + [""] * 4)[:4]
    path = os.fsdecode(name)
    if mode not in (*_BLOBS, _LINK) or any(part in ("", ".", "..") or part == ".git" for part in path.split("/")):
        return None
    if not size.isdigit():  # of a partial clone git says BAD, and goes on
        raise git.GitFailed(f"the content of {path} is missing")
    return path, TreeEntry(identity, int(size), mode == _LINK, mode == "100755")


def submodules_of(listing: bytes) -> dict[str, str]:
    """Path → commit, of what `git ls-tree -r -z` printed, with or without `-l`."""
    lines = [line.partition(b"\t") for line in listing.split(b"\0") if line.startswith(_SUBMODULE)]
    return {os.fsdecode(name): facts.split()[2].decode("ascii", "replace") for facts, _, name in lines}


def _parents(path: str) -> Iterable[str]:
    while path := posixpath.dirname(path):
        yield path


def _blobs(answer: bytes, count: int) -> Sequence[bytes]:
    found, at = [], 0
    for _ in range(count):
        end = answer.index(b"\n", at)
        head = answer[at:end].split()
        if len(head) != 3 or head[1] != b"blob":
            raise git.GitFailed(f"an object is missing ({answer[at:end].decode('ascii', 'replace')})")
        at = end + 1 + int(head[2])
        found.append(answer[end + 1 : at])
        at += 1
    return found


def _quote_path(path: str) -> str:
    """One path for git's list of directories, which colons separate; quoted where it has to be."""
    if ":" not in path and not path.startswith('"'):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:300] if lines else "git gave no reason"


def is_committed(directory: Path, path: Path) -> bool:
    """Whether the commit that is checked out holds this file, or something in this folder, or names the commit of a
    submodule that it is in. One that a step has put there is not part of the change."""
    try:
        start = checkout_of(directory, path)
        top = os.fsdecode(git.run_git("rev-parse", "--show-toplevel", directory=start).rstrip(b"\n"))
        if not path.is_relative_to(top):
            return False
        place = path.relative_to(top)
        words = ("ls-tree", "-z", "HEAD", "--")
        if git.run_git(*words, place.as_posix(), directory=Path(top)):
            return True
        folders = (folder.as_posix() for folder in place.parents if folder.name)
        return any(submodules_of(git.run_git(*words, folder, directory=Path(top))) for folder in folders)
    except git.GitFailed:
        return False


def checkout_of(directory: Path, path: Path) -> Path:
    """A folder of the checkout: a job can have it in a folder of its own, below the one that it works in."""
    with suppress(git.GitFailed):
        git.run_git("rev-parse", "--show-toplevel", directory=directory)
        return directory
    inside = (folder for folder in reversed(path.parents) if folder.is_relative_to(directory))
    return next((folder for folder in inside if os.path.lexists(folder / ".git")), directory)


def refuse_committed_link(directory: Path, output: Path) -> None:
    """Results are written where nobody's commit leads us: not through a link that is in the repository. output: as it
    was named, relative to the directory or absolute. One that its user made is its user's. Raises UsageError."""
    directory = directory.resolve()
    here = Path(output.anchor) if output.is_absolute() else directory
    for part in output.parts[len(Path(output.anchor).parts) :]:
        here = here / part
        if os.path.islink(here) and is_committed(directory, here):  # noqa: PTH114 - which never raises
            shown = os.path.relpath(here, directory)
            raise UsageError(
                f"{shown} is a link in the repository, and results would be written where it leads",
                help="remove it, or name another folder with --output",
            )


_FOR_ALL = 0o444


@dataclass(frozen=True, slots=True)
class CheckoutCopy:
    """A checkout and its copy."""

    source: Path
    """The checkout."""
    place: Path
    """The copy."""
    secret: tuple[Path, ...]
    """What no script may read below `source`."""

    def inside(self, path: Path) -> Path | None:
        """Where the copy has this file of the checkout; None for one that lies elsewhere."""
        real = Path(os.path.realpath(path))
        return self.place / real.relative_to(self.source) if real.is_relative_to(self.source) else None


def copy_checkout(source: Path, place: Path, left_out: Collection[Path]) -> CheckoutCopy:
    """Copy a checkout to the new directory `place`. Files that its owner alone may read are readable in the copy for
    all who may enter it; what we may not read ourselves is not there. left_out: absolute paths; `source` itself leaves
    nothing.

    Raises HarnessError.
    """
    source = Path(os.path.realpath(source))
    gone = {Path(os.path.realpath(path)) for path in (*left_out, place)}
    relative = {path.relative_to(source).as_posix() for path in gone if path.is_relative_to(source)}
    try:
        place.mkdir(mode=0o700)
        if source in gone:
            return CheckoutCopy(source, place, (source,))
        copied = copy_entries(source, place, leave_out=lambda path, _: path in relative, link=_may_be_linked)
        git_history.settle(source, place, copied.repositories, git_history.Withheld((), ()))
        _open(place)
    except OSError as error:
        raise HarnessError(f"{source} can't be copied for scripts on the host: {error.strerror or error}") from error
    except git.GitFailed as error:
        raise HarnessError(f"the git history of {source} can't be copied: {error}") from error
    secret = gone | {source / path for path in copied.repositories}
    return CheckoutCopy(source, place, tuple(sorted(path for path in secret if path.is_relative_to(source))))


def _may_be_linked(path: str, status: os.stat_result) -> bool:
    """Whether the copy may have the very file: one that all may read already and only its owner writes, and that we
    don't rewrite, as we do what a repository has besides its objects."""
    parts = path.split("/")
    if ".git" in parts and parts[parts.index(".git") + 1 :][:1] != ["objects"]:
        return False
    return status.st_mode & 0o7022 == 0 and _open_mode(status) == stat.S_IMODE(status.st_mode)


def _open(place: Path) -> None:
    """Let everybody who can enter `place` read all that is in it."""
    for folder, folders, files in walk(place):
        for name in (*folders, *files):
            path = Path(folder, name)
            status = path.lstat()
            if not stat.S_ISLNK(status.st_mode) and _open_mode(status) != stat.S_IMODE(status.st_mode):
                path.chmod(_open_mode(status))


def _open_mode(status: os.stat_result) -> int:
    runs = status.st_mode & stat.S_IXUSR or stat.S_ISDIR(status.st_mode)
    return stat.S_IMODE(status.st_mode) | _FOR_ALL | (0o111 if runs else 0)
