"""Finding out what a run is: the facts of its identity (`identity.py`).

Folders are read once, in a thread of their own, while the first cells get ready: a cell's agent waits for it, so that
nothing that is counted can have been changed by an agent. The engine is asked for images when the first cell of a spec
is finished, since only then all of them are there.

What host scripts can read of a checkout beside themselves, where the commit does not say it: files that differ from
the commit, and files that git does not know in the folders of the scripts. Outside a repository all files of these
folders. What `.gitignore` names does not count: nobody keeps there what a check needs, and builds change it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action import __version__
from keystone_action.errors import HarnessError, UsageError
from keystone_action.files.git import commands as git
from keystone_action.files.tree_digest import TreeDigester
from keystone_action.files.workspace import digest_tree
from keystone_action.invariants.check import Check
from keystone_action.runner.journal.entries import holds_results
from keystone_action.runner.journal.identity import (
    LOCAL,
    Identity,
    IdentityDifference,
    continue_identity,
    explain_differences,
    identity_contradictions,
    identity_differences,
)
from keystone_action.runner.model_access import gateway_of
from keystone_action.runner.preflight import needs_image
from keystone_action.runner.secrets import handed_out, is_key
from keystone_action.runner.started_run import hidden_places, results_places
from keystone_action.spec.expressions import ExpressionError, interpolate, leaves
from keystone_action.spec.loading.loaded_spec import LoadedSpec, enclosing_root
from keystone_action.spec.models.fields import AuthorPath
from keystone_action.spec.walking import walk

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.records import ImageRecord
    from keystone_action.options.model import Options
    from keystone_action.runner.journal.journal import Journal
    from keystone_action.runner.preflight import Facilities
    from keystone_action.spec.loading.loaded_spec import LoadedSpec
    from keystone_action.spec.plan import Cell, Plan

_ENGINE_SECONDS = 5


def run_facts(options: Options, specs: Collection[LoadedSpec], commit: str | None) -> Identity:
    """What is known of a run before anything is read: versions, commit, options that decide, specs, selection."""
    failed = options.earlier.failed_cells
    threshold = "each spec's own" if options.verdict.threshold is None else f"{options.verdict.threshold:g}"
    selection = {
        "the filter": options.cells.filter or "",
        "the tags": ", ".join(sorted(set(options.cells.tags))),
        "the number of replicas": "each spec's own" if options.cells.replicas is None else str(options.cells.replicas),
        "the run whose failed cells are run again": failed.run_id if failed else "",
    }
    return Identity(
        {
            "version": {"Keystone": __version__, "Python": f"{sys.version_info.major}.{sys.version_info.minor}"},
            "commit": {} if commit is None else {"sha": commit},
            "option": {
                "the threshold": threshold,
                "fail-on-skipped": str(options.verdict.fail_on_skipped).lower(),
                "fail-on-stale": str(options.verdict.fail_on_stale).lower(),
                "the agent": options.cells.agent or "each spec's own",
                "the gateway": options.running.gateway or "each spec's own",
            },
            "parameter": dict(options.cells.params),
            "spec": {loaded.spec.id: loaded.sha256 for loaded in specs},
            "selection": {name: value for name, value in selection.items() if value},
        }
    )


@dataclass
class FactsReader:
    """Reads what the specs of a run name."""

    options: Options
    directory: Path
    """The run's, for results."""
    facilities: Facilities
    digester: TreeDigester = field(default_factory=TreeDigester)

    def facts(self, planned: Plan) -> dict[str, dict[str, dict[str, str]]]:
        """By spec id, of each spec that has cells."""
        cells: dict[str, list[Cell]] = {}
        for cell in planned.cells:
            cells.setdefault(cell.loaded.spec.id, []).append(cell)
        return {spec_id: self._of(own[0].loaded, own) for spec_id, own in cells.items()}

    def stop(self) -> None:
        """Nobody waits for it any more: a thread that still reads ends soon. Called by another one."""
        self.digester.stopped = True

    def _of(self, loaded: LoadedSpec, cells: Collection[Cell]) -> dict[str, dict[str, str]]:
        folders = _Folders(self, loaded)
        if loaded.spec.workspace is not None:
            folders.add_copied(loaded.spec.workspace, loaded.workspace_left_out)
        for text in dict.fromkeys(cell.agent.dir for cell in cells):
            if text is not None:
                folders.add_copied(text, loaded.agent_left_out)
        for path in sorted({*loaded.author_files, *loaded.withheld} - {loaded.path.resolve()} - folders.seen):
            folders.add_named(path)
        gateways = [gateway_of(loaded.spec, cell.agent, self.options) for cell in cells]
        if any(one is not None and one.mode == "replay" for one in gateways):
            folders.add_recordings()
        return {
            "sandbox": {"kind": "docker" if loaded.spec.id in self.facilities.images else "process"},
            "judge": dict(_judges(loaded, self.options)),
            "variable": _variables(loaded, self.options, cells),
            "file": folders.files,
            "folder": folders.folders,
            "helper": folders.helpers(),
            "remote branches": folders.remote_branches,
        }


class _Folders:
    """What one spec names, by the names that it has on every machine."""

    def __init__(self, reading: FactsReader, loaded: LoadedSpec) -> None:
        self._reading, self._loaded = reading, loaded
        self._hidden = hidden_places(loaded, reading.options)
        self._results = results_places(reading.directory, reading.options)
        self.seen: set[Path] = set()
        self.files: dict[str, str] = {}
        self.folders: dict[str, str] = {}
        self.remote_branches: dict[str, str] = {}

    def add_copied(self, text: str, ignore: Collection[str]) -> None:
        """`workspace` or `agent.dir`."""
        try:
            path = self._loaded.code_path(text)
        except UsageError:
            return  # told by the cells
        self.seen.add(path.resolve())
        self._folder(f"{text} without {', '.join(sorted(ignore))}" if ignore else text, path, self._hidden, ignore)

    def add_named(self, path: Path) -> None:
        """Any other file or folder of the author's. What is withheld is there for checks, all of it."""
        if path.is_dir():
            self._folder(self._name(path), path, () if path in self._loaded.withheld else self._hidden, ())
        else:
            self.files[self._name(path)] = self._reading.digester.file(path)

    def add_recordings(self) -> None:
        """What a replay answers with. (A run that records writes there, and one with real models reads none of it.)"""
        path = self._loaded.directory / self._loaded.recordings
        if path.is_dir():
            self._folder(self._loaded.recordings, path, (), ())

    def helpers(self) -> dict[str, str]:
        """What host scripts can read besides."""
        loaded, summary = self._loaded, self._reading.options.reports.summary_copy
        counted = {*self.seen, *loaded.author_files, *loaded.withheld, loaded.path}
        results = [*self._results, *([] if summary is None else [summary])]
        return helper_facts(loaded, self._reading.digester, counted=counted, results=results)

    def _folder(self, name: str, path: Path, hidden: Collection[Path], ignore: Collection[str]) -> None:
        digester = self._reading.digester
        try:
            digest = digest_tree(
                digester, path, withheld=hidden, results=self._results, ignore=ignore, holds_results=holds_results
            )
        except (HarnessError, OSError):
            return  # told by the cells
        self.folders[name] = digest.content
        if digest.remote_branches:
            self.remote_branches[name] = digest.remote_branches

    def _name(self, path: Path) -> str:
        for number, root in enumerate(self._loaded.further_roots, 1):
            if path.is_relative_to(root.resolve()):  # a clone lies elsewhere each time
                return f"clone {number}: {path.relative_to(root.resolve())}"
        return os.path.relpath(path, self._loaded.directory)


def _judges(loaded: LoadedSpec, options: Options) -> Iterator[tuple[str, str]]:
    """The models behind the names that a spec's checks use."""
    checks = [invariant.check for invariant in loaded.spec.invariants.values()]
    checks += [one.check for scenario in loaded.scenarios for one in scenario.invariants.values()]
    names = {name for check in checks if isinstance(check, Check) for name in check.judges}
    if not names:
        return
    from keystone_action.judge.judgement import FAST, STRONG, JudgeFailed, resolve

    for name in sorted({*names, FAST, STRONG} if any("{{" in name for name in names) else names):
        try:
            model = resolve(
                name,
                environ=options.caller.environ,
                fast=options.running.judge_fast,
                strong=options.running.judge_strong,
            )
        except JudgeFailed:
            continue  # told by the check
        yield name, f"{model.provider}:{model.name}"


def _variables(loaded: LoadedSpec, options: Options, cells: Collection[Cell]) -> dict[str, str]:
    """What the agent is given of our environment, and where its models are, as digests; a key that is another today
    makes no other run."""
    names = [name for name in handed_out(loaded) if not is_key(name)]
    gateways = [gateway_of(loaded.spec, cell.agent, options) for cell in cells]
    if apis := {api for gateway in gateways if gateway is not None for api in gateway.apis.values()}:
        from keystone_action.gateway.upstreams import VARIABLES

        names += [VARIABLES[api][1] for api in sorted(apis)]
    values = {name: options.caller.environ.get(name, "") for name in names}
    return {
        name: hashlib.sha256(f"{name}={value}".encode("utf-8", "surrogateescape")).hexdigest()
        for name, value in values.items()
    }


class Identification:
    """The identity of a run while it goes on. start: `run_facts`. earlier: what the journal that is resumed says, None
    without one.

    `read` is called once, beside the cells; `ready` lets an agent start, `of` comes before the line of a cell.
    """

    def __init__(
        self, start: Identity, earlier: Identity | None, journal: Journal, run_id: str, reading: FactsReader
    ) -> None:
        if earlier is not None:
            refuse_another(earlier, start)
        self.identity = start if earlier is None else earlier
        self._said = earlier is not None
        self._selection = {"selection": start.run["selection"]}
        self._journal, self._run_id, self._reading = journal, run_id, reading
        self._ready = anyio.Event()
        self._asked: set[str] = set()

    async def read(self, planned: Plan) -> None:
        """Read what the specs name, and say in the journal what this run is. Raises UsageError when it is another than
        the one that is resumed."""
        try:
            specs = await anyio.to_thread.run_sync(self._reading.facts, planned, abandon_on_cancel=True)
        finally:
            self._reading.stop()
        resumes = self._said
        self._add(Identity(self._selection, specs))
        self._ready.set()
        if resumes:
            for cell in {cell.loaded.spec.id: cell for cell in planned.cells}.values():
                await self.of(cell)  # of a spec without a cell left to run, too

    async def ready(self) -> None:
        """Returns once all is read that an agent could change."""
        if not self._ready.is_set():
            await self._ready.wait()

    async def of(self, cell: Cell) -> None:
        """Complete what is known of a cell's spec. Raises as `read`."""
        await self.ready()
        spec_id, facilities = cell.loaded.spec.id, self._reading.facilities
        if facilities.client is None or spec_id in self._asked:
            return
        names = _images(cell, facilities)
        if names:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_ENGINE_SECONDS):
                ask = partial(image_facts, facilities.client, names)
                found = await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
                self._add(Identity({}, {spec_id: {"image": found}}))
                if len(found) < len(names):
                    return  # one could not be had yet: asked again with the spec's next cell
        self._asked.add(spec_id)

    def _add(self, further: Identity) -> None:
        wrong = identity_contradictions(self.identity, further)
        if wrong:
            raise another_run(wrong)
        whole = continue_identity(self.identity, further)
        if whole != self.identity or not self._said:
            self._journal.say(further if self._said else whole, self._run_id)
        self.identity, self._said = whole, True


def refuse_another(earlier: Identity, now: Identity) -> None:
    """Raises UsageError when the run that would be resumed is not this one, as far as is known before anything is
    read."""
    found = identity_differences(earlier, now, "resume")
    if found:
        raise another_run(found)


def another_run(found: Sequence[IdentityDifference]) -> UsageError:
    """The refusal to show verdicts of one run as those of another."""
    return UsageError(
        f"this is not the run that is to be resumed: {explain_differences(found, 'resume')}",
        help="start a new run without --resume",
    )


def _images(cell: Cell, facilities: Facilities) -> list[str]:
    """The images that a cell's containers are of."""
    spec = cell.loaded.spec
    named = [
        facilities.images.get(spec.id),
        *(s.image for s in spec.services if needs_image(s) and hasattr(s, "image")),
    ]
    known = {"params": dict(cell.params), "record": cell.scenario.record or {}}
    found = []
    for text in named:
        try:
            found += [interpolate(text, known)] if text else []
        except ExpressionError:
            continue  # what differs from cell to cell is not a fact of the spec
    return sorted(set(found))


def image_facts(client: EngineClient, names: Collection[str]) -> dict[str, str]:
    """What the engine has under these names. Blocking; what it does not have, or can't be asked for, is left out."""
    found = {}
    for name in names:
        try:
            found[name] = image_fact(client.inspect_image(name))
        except Exception:  # noqa: BLE001, S112 - the cell tells what is wrong with its image
            continue
    return found


def image_fact(attributes: ImageRecord) -> str:
    """The digest that a registry has the image under, on every machine; else its id on this one."""
    digests = sorted(text.partition("@")[2] for text in attributes.get("RepoDigests") or ())
    return digests[0] if digests else f"{LOCAL}{attributes.get('Id', '')}"


MOST_NAMED = 500
"""Files that have a fact each; more of them are one fact together."""
TOGETHER = "and others beside them"
_STATUS = ("--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=none")
_NEVER_READ = frozenset({".git", "__pycache__"})


def script_folders(loaded: LoadedSpec) -> list[Path]:
    """The folders of what a spec's checks run on the host; of a command, the spec's own."""
    checks = [one.check for one in loaded.spec.invariants.values()]
    checks += [one.check for scenario in loaded.scenarios for one in scenario.invariants.values()]
    found: dict[Path, None] = {}
    for check in checks:
        if isinstance(check, Check) and check.on_host:
            named = [leaf.value for leaf in leaves(check) if leaf.marker(AuthorPath) is not None]
            found |= dict.fromkeys((loaded.directory / path).resolve().parent for path in named)
            if not named:
                found[loaded.directory.resolve()] = None
    return list(found)


def helper_facts(
    loaded: LoadedSpec, digester: TreeDigester, *, counted: Iterable[Path], results: Iterable[Path]
) -> dict[str, str]:
    """What host scripts can read of a checkout beside themselves, where the commit does not say it: digests by paths
    relative to the spec. These are files that differ from the commit, and files that git does not know in the folders
    of the scripts; outside a repository all files of these folders. What `.gitignore` names does not count: nobody
    keeps there what a check needs, and builds change it.

    counted: files and folders that the identity has already. results: folders with results, of this run or others."""
    folders = script_folders(loaded)
    if not folders:
        return {}
    left_out = _LeftOut([*counted, *results])
    found: dict[str, str] = {}
    for path in _candidates(enclosing_root(loaded.directory.resolve()), folders):
        if not left_out(path):
            name = os.fsencode(os.path.relpath(path, loaded.directory)).decode("utf-8", "backslashreplace")
            found[name] = _digest(path, digester)
    return found if len(found) <= MOST_NAMED else {TOGETHER: _together(found)}


def _candidates(root: Path, folders: Iterable[Path]) -> Iterator[Path]:
    try:
        changes = git.run_git("status", *_STATUS, directory=root)
        top = Path(os.fsdecode(git.run_git("rev-parse", "--show-toplevel", directory=root).rstrip(b"\n")))
    except git.GitFailed:
        yield from dict.fromkeys(path for folder in folders for path in _files_below(folder))
        return
    for entry in filter(None, changes.split(b"\0")):
        path = top / os.fsdecode(entry[3:])
        if not entry.startswith(b"??") or any(path.is_relative_to(folder) for folder in folders):
            yield path


def _files_below(folder: Path) -> Iterator[Path]:
    for place, folders, files in walk(folder):
        folders[:] = [name for name in folders if name not in _NEVER_READ and not holds_results(Path(place, name))]
        yield from (Path(place, name) for name in files)


class _LeftOut:
    """Whether a path is counted elsewhere, or never read."""

    def __init__(self, places: Iterable[Path]) -> None:
        self._places = {place.resolve() for place in places}
        self._known: dict[Path, bool] = {}

    def __call__(self, path: Path) -> bool:
        return path in self._places or path.name in _NEVER_READ or self._folder(path.parent)

    def _folder(self, folder: Path) -> bool:
        if folder not in self._known:
            here = folder in self._places or folder.name in _NEVER_READ or holds_results(folder)
            self._known[folder] = here or (folder != folder.parent and self._folder(folder.parent))
        return self._known[folder]


def _digest(path: Path, digester: TreeDigester) -> str:
    try:
        status = path.lstat()
    except OSError:
        return "not there"
    if stat.S_ISDIR(status.st_mode):  # a repository in this one
        return digester.folder(path, lambda _, __: False).content
    target = f"link to {os.fspath(path.readlink())!a}: " if stat.S_ISLNK(status.st_mode) else ""
    return f"{target}{'program ' if status.st_mode & stat.S_IXUSR else ''}{digester.file(path)}"


def _together(found: Mapping[str, str]) -> str:
    lines = "".join(f"{name!r} {value!r}\n" for name, value in sorted(found.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
