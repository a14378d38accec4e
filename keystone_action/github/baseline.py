"""`baseline: auto`: the latest results of the base branch, from the artifact that an earlier run of this workflow left.

Only runs of this repository's own branch count, started by a push or a schedule: a fork can have a branch of the same
name, and users who may start a workflow by hand may run it on anything. The artifact's content is checked all the same.

An artifact can come from a fork's run, so its zip is taken to be hostile: all names are judged before the first file is
written, and one wrong name refuses the whole.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from keystone_action.files.removal import remove_tree
from keystone_action.github.api.answers import Artifact, WorkflowRun, server_words
from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.errors import BadArchive, GitHubError, NotFound
from keystone_action.scoring.document import RESULTS_FILE

_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 0x1
_MAX_DIRECTORY = 8 * 1024 * 1024
"""Bytes of a zip's list of entries, each of which becomes an object of ten times its size."""
_CHUNK = 256 * 1024
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """files, and bytes when unpacked, of what is wanted of an archive."""

    files: int = 10_000
    size: int = 256 * 1024 * 1024


def unpack_artifact(
    content: bytes,
    folder: Path,
    *,
    wanted: Callable[[str], bool] | None = None,
    limits: ArchiveLimits | None = None,
) -> list[Path]:
    """Writes the files of a zip below `folder`, which must not exist, and returns their paths.

    wanted: says by its name whether a file is unpacked; all are by default. What is not wanted counts only for the
    rules about names. Raises BadArchive, and then leaves no folder.
    """
    limits = limits or ArchiveLimits()
    try:
        with zipfile.ZipFile(_Guarded(content)) as archive:
            entries = archive.infolist()
            _judge_names(entries)
            chosen = [entry for entry in entries if not entry.is_dir() and (wanted is None or wanted(entry.filename))]
            _judge_size(chosen, limits)
            return _write(archive, chosen, folder, limits)
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, OverflowError) as error:
        # zipfile speaks of a hostile archive in any of these.
        raise BadArchive(f"the archive is broken ({server_words(str(error)) or type(error).__name__})") from None


class _Guarded(io.BytesIO):
    """Refuses to hand out so much at once as only a huge list of entries is asked for."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY:
            raise BadArchive(f"the archive's list of files is larger than {_MAX_DIRECTORY} bytes")
        return super().read(size)


def _judge_names(entries: list[zipfile.ZipInfo]) -> None:
    files: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        name = entry.filename
        _judge_name(name)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFDIR if entry.is_dir() else stat.S_IFREG):
            raise BadArchive(f"{_shorten(name)} is a link or another special file")
        if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _METHODS:
            raise BadArchive(f"{_shorten(name)} is encrypted, or compressed in an unusual way")
        path = PurePosixPath(name)
        if not entry.is_dir():
            if str(path) in files:
                raise BadArchive(f"{_shorten(name)} is in it twice")
            files.add(str(path))
        parents = [str(parent) for parent in path.parents if str(parent) != "."]
        folders.update([str(path), *parents] if entry.is_dir() else parents)
    for name in sorted(files & folders):
        raise BadArchive(f"{_shorten(name)} is a file and a folder in it")


def _judge_name(name: str) -> None:
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or "\\" in name or _DRIVE.match(name) or any(part in ("", ".", "..") for part in parts):
        raise BadArchive(f"{_shorten(name)} leads out of the folder that it is unpacked to")
    if not name.isprintable() or len(name.encode("utf-8", "replace")) > 1024 or len(parts) > 32:
        raise BadArchive(f"{_shorten(name)} is not a name for a file")
    if any(len(part.encode("utf-8", "replace")) > 255 for part in parts):
        raise BadArchive(f"{_shorten(name)} is not a name for a file")


def _judge_size(chosen: list[zipfile.ZipInfo], limits: ArchiveLimits) -> None:
    """By what the archive says; what it holds is counted again when it is written."""
    if len(chosen) > limits.files:
        raise BadArchive(f"it holds {len(chosen)} files, more than {limits.files}")
    if sum(entry.file_size for entry in chosen) > limits.size:
        raise BadArchive(f"it holds more than {limits.size} bytes")


def _write(archive: zipfile.ZipFile, chosen: list[zipfile.ZipInfo], folder: Path, limits: ArchiveLimits) -> list[Path]:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise BadArchive(f"it can't be unpacked to {folder}: {error.strerror}") from None
    written: list[Path] = []
    left = limits.size
    try:
        for entry in chosen:
            path = folder / entry.filename
            path.parent.mkdir(parents=True, exist_ok=True)
            left -= _write_one(archive, entry, path, left)
            written.append(path)
    except BaseException as error:
        remove_tree(folder)
        if isinstance(error, OSError):
            raise BadArchive(f"it can't be unpacked to {folder}: {error.strerror}") from None
        raise
    return written


def _write_one(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, left: int) -> int:
    size = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with archive.open(entry) as source, os.fdopen(os.open(path, flags, 0o644), "wb") as target:
        while chunk := source.read(_CHUNK):
            size += len(chunk)
            if size > left:
                raise BadArchive(f"{_shorten(entry.filename)} is larger than it says")
            target.write(chunk)
    return size


def _shorten(name: str) -> str:
    return f"{server_words(name)!r}"


MAX_RUNS = 200
"""Runs of a branch that are looked at."""
MAX_FOUND = 5
"""Artifacts that are fetched, and looked at."""
MAX_SIZE = 256 << 20
"""Bytes of an artifact, with the logs of all cells."""
MAX_WITHOUT = 20
"""Runs that would count, but have no such artifact."""
_LIMITS = ArchiveLimits(files=1, size=256 * 1024 * 1024)
_WORKFLOW = re.compile(r"[^/]+/[^/]+/(?:.*/)?([^/@]+\.ya?ml)@.+")


@dataclass(frozen=True, slots=True)
class FoundBaseline:
    """path: of the results file, ours. source: the run that it is from, in words. unfit: why there is no path, in
    sentences."""

    path: Path | None
    source: str
    unfit: str = ""


class _Unfit(GitHubError):  # noqa: N818 - as its base class is named
    """An artifact that holds no results of use."""


def artifact_names(comment_key: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """`keystone-results-<key>`. The default key begins with the workflow's reference, which names the branch: the part
    after `@` is left out there, since the base branch has another one."""
    reference = environ.get("GITHUB_WORKFLOW_REF", "")
    keys = [comment_key]
    if reference and comment_key.startswith(reference):
        keys.insert(0, reference.partition("@")[0] + comment_key[len(reference) :])
    return tuple(dict.fromkeys(f"keystone-results-{re.sub('[^A-Za-z0-9-]', '-', key)}" for key in keys))


def find_baselines(
    github: GitHubClient, *, names: Iterable[str], branches: Iterable[str], environ: Mapping[str, str], folder: Path
) -> Iterator[FoundBaseline]:
    """The results there are, at most MAX_FOUND, newest first, each unpacked into a folder of its own below `folder`:
    not all are of use, a run can have been cancelled, or its artifact be another.

    names: of artifacts. branches: those of the first one come first. Raises LookupError with a sentence at the end,
    GitHubError when GitHub says no (a missing `actions: read` is named).
    """
    workflow = _WORKFLOW.fullmatch(environ.get("GITHUB_WORKFLOW_REF", ""))
    if workflow is None:
        raise LookupError("GITHUB_WORKFLOW_REF does not name this workflow's file")
    wanted, places = list(names), list(branches)
    if not places:
        raise LookupError("the event does not say which branch is the base")
    found = 0
    for branch in places:
        for run in _runs(github, workflow[1], branch, environ):
            artifact = _artifact(github, run, wanted)
            if artifact is not None and found < MAX_FOUND:
                found += 1
                yield _find_baseline(github, run, artifact, branch, folder / str(found))
    unfit = f" of a run that went to its end and graded something ({found} looked at)" if found else ""
    raise LookupError(
        f"no run of {workflow[1]} on {' or '.join(places)}, from a push or schedule, has an unexpired artifact"
        f" {' or '.join(wanted)}{unfit}"
    )


def _runs(github: GitHubClient, workflow: str, branch: str, environ: Mapping[str, str]) -> Iterable[WorkflowRun]:
    repository = environ.get("GITHUB_REPOSITORY", "").lower()
    runs = itertools.islice(github.workflow_runs(workflow, branch=branch, status="completed"), MAX_RUNS)
    fitting = (
        run
        for run in runs
        if run.event in ("push", "schedule")
        and run.head_branch == branch
        and run.head_repository.lower() == repository
        and str(run.id) != environ.get("GITHUB_RUN_ID")
    )
    return itertools.islice(fitting, MAX_WITHOUT)


def _artifact(github: GitHubClient, run: WorkflowRun, names: list[str]) -> Artifact | None:
    """The newest of a run; a run that was started again can have several."""
    for name in names:
        found = [one for one in github.artifacts(run.id, name=name) if one.name == name and not one.expired]
        if found:
            return max(found, key=lambda one: (one.created_at, one.id))
    return None


def _find_baseline(
    github: GitHubClient, run: WorkflowRun, artifact: Artifact, branch: str, folder: Path
) -> FoundBaseline:
    ended = f", {run.conclusion}" if run.conclusion not in ("", "success") else ""
    source = f"run {run.id} of {branch} ({run.event}, {run.created_at[:10]}{ended})"
    try:
        return FoundBaseline(_unpack(github, run, artifact, folder), source)
    except (_Unfit, BadArchive, NotFound) as error:  # it can have expired since it was listed
        return FoundBaseline(None, source, error.sentences)


def _unpack(github: GitHubClient, run: WorkflowRun, artifact: Artifact, folder: Path) -> Path:
    if artifact.size_bytes > MAX_SIZE:
        raise _Unfit(
            f"the artifact {artifact.name} of run {run.id} has {artifact.size_bytes >> 20:,} MiB; at most"
            f" {MAX_SIZE >> 20:,} are fetched",
            help=f"upload {RESULTS_FILE} alone under that name, and the rest of the folder under another",
        )
    content = github.download_artifact(artifact.id, limit=MAX_SIZE)
    unpacked = unpack_artifact(content, folder, wanted=lambda name: name == RESULTS_FILE, limits=_LIMITS)
    if not unpacked:
        raise _Unfit(
            f"the artifact {artifact.name} of run {run.id} holds no {RESULTS_FILE}",
            help="upload the folder that output-dir names, and nothing around it",
        )
    return unpacked[0]
