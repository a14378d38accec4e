"""The inputs of the action: `INPUT_*` variables → one frozen `Options`, or every mistake at once.

The runner passes an input as `INPUT_<NAME>`: upper case, blanks as `_`, dashes kept. It enforces neither `required`
nor types, and an input that was left out arrives as an empty text.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keystone_action.errors import UsageError
from keystone_action.github.api.errors import BadSetting
from keystone_action.github.api.transport import read_ca_bundle
from keystone_action.options.model import MAX_JOBS, Options
from keystone_action.options.option import Setting
from keystone_action.options.values import AUTO_SHARD, PARAMETER_NAME, UnreadableError, find_shard
from keystone_action.spec.walking import walk

_SECRET = frozenset(setting.option.input for setting in Options.settings() if setting.option.secret)
"""Inputs whose values no message repeats."""

_RESERVED = frozenset({"entrypoint", "args"})
"""Names that the runner itself reads for container actions."""

_LONGEST = 100
"""Characters of a value that a message repeats."""


def variable(name: str) -> str:
    """The environment variable that carries an input."""
    return "INPUT_" + name.replace(" ", "_").upper()


class InputReader:
    """Reads inputs from an environment, and collects what is wrong with them, so that all of it is said at once."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.names: set[str] = set()
        """The inputs that were asked for so far."""
        self.problems: list[UsageError] = []
        """One error for each thing that is wrong."""

    def text(self, name: str) -> str | None:
        """The trimmed value; None when empty."""
        self.names.add(name)
        return self.environ.get(variable(name), "").strip() or None

    def _words(self, text: str) -> tuple[str, ...]:
        """A list, separated by new lines or commas; empty entries don't count."""
        entries = re.split(r"[,\r\n]", text)
        return tuple(self._here(entry.strip()) for entry in entries if entry.strip())

    def _here(self, entry: str) -> str:
        """`${{ github.workspace }}` is the runner's name of the workspace, which it turns into ours at the beginning of
        an input only, and not further on in a list."""
        parent, repository = (self.environ.get(name, "") for name in ("RUNNER_WORKSPACE", "GITHUB_REPOSITORY"))
        theirs = f"{parent}/{repository.rpartition('/')[2]}"
        if not parent or not f"{entry}/".startswith(f"{theirs}/"):
            return entry
        return self.environ.get("GITHUB_WORKSPACE", "") + entry[len(theirs) :]

    def value(self, setting: Setting, directory: Path, workspace: Path) -> Any:
        """The value of an option's input; None when it is empty or wrong. directory: what paths are relative to."""
        name, default = setting.option.input, setting.option.input_default
        text = self.text(name)
        if text is None and (not default or "${{" in default):
            return None
        if text in setting.words:
            return text
        words = self._words(default if text is None else text)
        if setting.type is Path or (setting.is_list and setting.item is Path):
            inside = (workspace, *(self.runner_temp() if setting.option.inside != "workspace" else ()))
            if not setting.is_list:
                return self._resolve(name, text or default, directory, inside)
            return self._paths(name, words, directory, inside) or None
        if setting.type is Mapping:
            return self._parameters(setting, text or "")
        if setting.is_list:
            return tuple(value for word in words if (value := self._read(setting, word)) is not None) or None
        return self._read(setting, text or default)

    def _read(self, setting: Setting, text: str) -> Any:
        try:
            return setting.read(text)
        except UnreadableError as error:
            found = error.found or (text if setting.is_list else None)
            self.problem(setting.option.input, error.expected, found=found)
            return None

    def _parameters(self, setting: Setting, text: str) -> dict[str, str]:
        """`name=value`, one a line; on one line a comma separates only where another `name=` follows, since values may
        hold commas."""
        found: dict[str, str] = {}
        for line in text.splitlines():
            for item in re.split(rf",(?=\s*{PARAMETER_NAME}\s*=)", line):
                pair = self._read(setting, item.strip()) if item.strip() else None
                if pair is not None and found.setdefault(pair[0], pair[1].strip()) != pair[1].strip():
                    both = f"{pair[0]}={found[pair[0]]} and {pair[0]}={pair[1].strip()}"
                    self.problem(setting.option.input, f"{pair[0]} once", found=both)
        return found

    def workspace(self) -> Path:
        """The checkout, from GITHUB_WORKSPACE."""
        value = self.environ.get("GITHUB_WORKSPACE", "")
        if not value or not Path(value).is_dir():
            found = f"is {value!r}, which is not a directory" if value else "is not set"
            self.problems.append(
                UsageError(f"GITHUB_WORKSPACE {found}", help="outside of a workflow, use: keystone run SPEC")
            )
            return Path.cwd()
        return Path(value).resolve()

    def runner_temp(self) -> tuple[Path, ...]:
        """The runner's folder for temporary files, where it is visible in here."""
        value = self.environ.get("RUNNER_TEMP", "")
        return (Path(value).resolve(),) if value and Path(value).is_dir() else ()

    def directory(self, name: str, workspace: Path) -> Path:
        """A directory that exists in the workspace; the workspace itself by default."""
        path = self.path(name, workspace, (workspace,))
        if path is None:
            return workspace
        if not path.is_dir():
            self.problem(name, "a directory that exists in the workspace")
            return workspace
        return path

    def path(self, name: str, base: Path, inside: tuple[Path, ...]) -> Path | None:
        """An absolute path, links followed, that stays inside one of the folders."""
        value = self.text(name)
        return None if value is None else self._resolve(name, value, base, inside)

    def _paths(self, name: str, words: tuple[str, ...], base: Path, inside: tuple[Path, ...]) -> tuple[Path, ...]:
        """A list of such paths."""
        found = (self._resolve(name, word, base, inside) for word in words)
        return tuple(path for path in found if path is not None)

    def _resolve(self, name: str, value: str, base: Path, inside: tuple[Path, ...]) -> Path | None:
        try:
            path = (base / value).resolve()
        except (OSError, ValueError, RuntimeError):
            self.problem(name, "a path")
            return None
        if not any(path.is_relative_to(folder) for folder in inside):
            kinds = ("the workspace", "the runner's temporary folder")
            places = " or ".join(f"{kind} ({folder})" for kind, folder in zip(kinds, inside, strict=False))
            self.problem(name, f"a path inside of {places}")
            return None
        return path

    def problem(self, name: str, expected: str, *, found: str | None = None) -> None:
        """Notes that an input is not what it should be."""
        value = self.text(name) if found is None else found
        shown = " is not set" if value is None else "" if name in _SECRET else f" is {_cut(value)!r}"
        self.problems.append(UsageError(f"input {name}{shown}; expected {expected}"))

    def unknown(self) -> tuple[str, ...]:
        """Sentences about inputs that nobody asked for. One that looks like a misspelt input is a problem: a gate
        must not be weaker than its author wrote it."""
        known = {variable(name): name for name in self.names}
        warnings = []
        for key in sorted(self.environ):
            name = key.removeprefix("INPUT_").lower()
            if not key.startswith("INPUT_") or key in known or name in _RESERVED or not self.environ[key].strip():
                continue
            near = difflib.get_close_matches(name.replace("_", "-"), self.names, n=1, cutoff=0.8)
            if near:
                self.problems.append(UsageError(f"there is no input {name}; did you mean {near[0]}?"))
            else:
                warnings.append(f"there is no input {name}; it has no effect")
        return tuple(warnings)

    def raise_problems(self) -> None:
        """Raises the one problem there is, or one UsageError that lists them all."""
        if len(self.problems) == 1:
            raise self.problems[0]
        if self.problems:
            lines = "\n".join(f"- {problem.message}" for problem in self.problems)
            raise UsageError(f"{len(self.problems)} inputs are wrong:\n{lines}")


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST else value[:_LONGEST] + "…"


RESULTS = ("results.json", "journal.jsonl")
"""What tells a folder of results."""
_DEFAULTS = {setting.name: setting.option.input_default for setting in Options.settings()}
_OUTPUT = _DEFAULTS["output"]
_SPECS = tuple(word.strip() for word in _DEFAULTS["specs"].split(","))
"""Which specs are run where the input names none."""
_LEFT = {
    True: "remove from the repository what the commit holds there",
    False: "none are in the commit, so an earlier step or run has left these; remove them before this step, "
    "or give each step a folder of its own",
}
IsCommitted = Callable[[Path, Path], bool]
"""Whether the commit that is checked out in a folder holds something at a path."""


def read_options(reader: InputReader, *, is_committed: IsCommitted = lambda *_: False) -> Options:
    """Asks the reader for every input there is. What is wrong is in `reader.problems`, with the default in its place.
    is_committed: asked of results that are there already, only to say who has left them."""
    workspace = reader.workspace()
    directory = reader.directory("working-directory", workspace)
    found: dict[str, Any] = {}
    for setting in Options.settings():
        if setting.option.input and setting.name not in ("directory", "ca_bundle"):
            value = reader.value(setting, directory, workspace)
            found |= {} if value is None else {setting.name: value}
    if found.get("shard") == AUTO_SHARD:
        try:
            found["shard"], found["shard_variables"] = find_shard(reader.environ)
        except UsageError as error:
            reader.problems.append(error)
            del found["shard"]
    found |= {"workspace": workspace, "directory": directory, "ca_bundle": _ca_bundle(reader, directory)}
    found = {"output": directory / _OUTPUT, "specs": _SPECS} | found
    found |= _names_of_job(reader, found)
    options = Options.of(**found, tolerate_missing=found["specs"] == _SPECS)
    _check_mode(reader, options)
    _check_login(reader, options)
    _check_output(reader, options, is_committed)
    return options


def _names_of_job(reader: InputReader, found: dict[str, Any]) -> dict[str, str]:
    """The defaults of action.yml that are expressions, for runners that leave defaults out; of a matrix those know no
    index. A status has no name when its input is empty."""
    environ = reader.environ
    names = ("GITHUB_WORKFLOW_REF", "GITHUB_JOB", "GITHUB_ACTION")
    key = "-".join([*(environ.get(name, "") for name in names), "0"])
    status = "" if variable("status-context") in environ else f"keystone/{environ.get('GITHUB_JOB') or 'run'}"
    return {
        "comment_key": found.get("comment_key", key),
        "status_context": found.get("status_context", status),
    }


def _ca_bundle(reader: InputReader, directory: Path) -> str | None:
    value = reader.text("ca-bundle")
    if value is None:
        return None
    try:
        return read_ca_bundle(value, directory)
    except BadSetting as error:
        reader.problems.append(UsageError(error.message, help=error.help))
        return None


def _check_mode(reader: InputReader, options: Options) -> None:
    """What a mode needs is there, and what another mode takes is not."""
    mode, jobs = options.jobs.mode, options.jobs
    given = {name for name in ("shards", "results", "baseline", "shard") if reader.text(name) is not None}
    if mode == "plan" and "shards" not in given:
        reader.problem("shards", f"how many jobs to plan, from 1 to {MAX_JOBS}, since mode is plan")
    elif mode != "plan" and "shards" in given:
        reader.problem("shards", "nothing unless mode is plan; a job that runs cells takes shard")
    if (jobs.shards or 0) > MAX_JOBS:
        reader.problem("shards", f"a whole number from 1 to {MAX_JOBS}")
    if mode == "merge" and "results" not in given:
        reader.problem("results", "the folder with the results of the shards, since mode is merge")
    elif mode == "comment" and len(jobs.results) != 1:
        reader.problem("results", "the one folder with the results of the other run, since mode is comment")
    elif mode not in ("merge", "comment") and "results" in given:
        reader.problem("results", "nothing unless mode is merge or comment")
    if "baseline" in given and mode not in ("run", "merge"):
        reader.problem("baseline", f"nothing, since mode is {mode}")
    if "shard" in given and mode != "run":
        reader.problem("shard", f"nothing, since mode is {mode}")


def _check_login(reader: InputReader, options: Options) -> None:
    """One half of a login is nothing without the other."""
    images = options.images
    halves = {"registry-username": images.registry_username, "registry-password": images.registry_password}
    for name, other in (tuple(halves), tuple(reversed(halves))):
        if reader.text(name) is not None and reader.text(other) is None:
            reader.problem(other, f"a value, since {name} is set")


def _check_output(reader: InputReader, options: Options, is_committed: IsCommitted) -> None:
    workspace, directory, output = options.caller.workspace, options.caller.directory, options.reports.folder
    link = _link_on_the_way(directory / (reader.text("output-dir") or _OUTPUT), workspace)
    if link is not None:
        reader.problem("output-dir", "a folder that no link leads to", found=str(link.relative_to(workspace)))
    elif output == workspace or directory.is_relative_to(output):
        reader.problem("output-dir", "a folder of its own, below the workspace")
    elif ".git" in output.parts[len(workspace.parts) :]:
        reader.problem("output-dir", "a folder outside of .git")
    elif any(os.path.lexists(one) and not one.is_dir() for one in (output, *output.parents)):
        reader.problem("output-dir", "a folder; there is a file of that name")
    elif options.jobs.mode in ("run", "merge") and _is_taken(output):
        expected = f"a folder without results or links: {_LEFT[is_committed(workspace, output)]}"
        reader.problem("output-dir", expected, found=str(output.relative_to(workspace)))


def _link_on_the_way(output: Path, workspace: Path) -> Path | None:
    """The first part of a path below the workspace that is a link: a change can commit one, and have our files written
    wherever it leads, over those of the checkout, too."""
    if not output.is_relative_to(workspace):
        return None
    here = workspace
    for part in output.parts[len(workspace.parts) :]:
        here = here / part
        if os.path.islink(here):  # noqa: PTH114 - which never raises
            return here
    return None


def _is_taken(output: Path) -> bool:
    """Whether it holds results, or a link: uploading the folder would follow a link to files of the machine."""
    if any(os.path.lexists(output / name) for name in RESULTS):
        return True
    entries = (Path(top) / name for top, folders, files in walk(output) for name in (*folders, *files))
    return any(entry.is_symlink() for entry in entries)
