"""The inputs of the action: `INPUT_*` variables → one frozen `Options`, or every mistake at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keystone_action.errors import UsageError
from keystone_action.github.api.errors import BadSetting
from keystone_action.github.api.transport import read_ca_bundle
from keystone_action.github.reader import InputReader, variable
from keystone_action.options.model import MAX_JOBS, Options
from keystone_action.spec.walking import walk

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
