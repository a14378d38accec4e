"""`keystone init`: a first spec that passes, for a small script or, with a workflow and an example, for a known agent
or Keystone's own tool loop, which needs no program.

Files that are there are never overwritten.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from keystone_action import __version__
from keystone_action.agents.presets.preset import Preset, load_preset, preset_names
from keystone_action.cli.found_agents import FoundAgent, find_agent
from keystone_action.errors import UsageError
from keystone_action.gateway.upstreams import VARIABLES
from keystone_action.spec.loading.diagnostics import listing, nearest

_SCRIPT_SPEC = """\
version: 1
id: first-spec
description: "A first spec: what the agent is asked, and what must hold when it is done"

task:
  prompt: "Write a friendly greeting to greeting.txt"

agent:
  type: command
  command: 'sh "$KEYSTONE_AGENT_DIR/agent.sh"'   # replace it by your own agent
  dir: agent
  timeout: 5m

invariants:
  greeting_written:
    description: "The greeting is there"
    gate: true                    # a gate: when it fails, the composite is 0
    check: {type: file_content, path: greeting.txt, contains: "Hello"}
  nothing_left_behind:
    description: "No temporary files"
    weight: 0.3
    check: {type: file_absent, path: "**/*.tmp"}

scoring:
  pass_threshold: 0.85
"""

_SCRIPT = """\
#!/bin/sh
# Stands in for your agent: it gets the task in $KEYSTONE_PROMPT and works in the current directory.
set -eu
echo "Hello from the agent, who was asked: $KEYSTONE_PROMPT" > greeting.txt
"""


def write_first_spec(directory: Path) -> list[Path]:
    """Write keystone.yaml and agent/agent.sh; returns the paths. Raises UsageError when one of them is there, or the
    directory can't be written."""
    return write_new_files(directory, {"keystone.yaml": _SCRIPT_SPEC, "agent/agent.sh": _SCRIPT})


def write_new_files(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files, by their paths below a directory, which may be new; returns their paths. Raises UsageError when one
    of them is there, or the directory can't be written: then nothing is left of them."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file", help="name a directory, which may be new: keystone init first")
    files = {directory / name: text for name, text in texts.items()}
    made: list[Path] = []
    try:
        for path in files:
            if path.exists() or path.is_symlink():
                raise UsageError(f"{path} is already there", help="keystone init DIR writes into another directory")
        for path, text in files.items():
            for folder in reversed([one for one in path.parents if not one.exists()]):
                folder.mkdir()
                made.append(folder)
            made.append(path)
            path.write_text(text, "utf-8")
    except OSError as error:
        _undo(made)
        where = error.filename or directory
        raise UsageError(f"{where} can't be written: {error.strerror}", help="choose another directory") from None
    return list(files)


def _undo(made: list[Path]) -> None:
    for path in reversed(made):
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


_REQUESTS = 40
_IMAGES = {"npm": "node:22", "pip": "python:3.12"}
"""By where a program comes from; both have git and a compiler, which agents look for."""
_MODELS = {"anthropic": "claude-sonnet-4-5", "openai": "gpt-5", "gemini": "gemini-2.5-pro"}
"""For programs that have none of their own."""
LOOPS: Mapping[str, str] = {"anthropic": "anthropic", "openai": "openai"}
"""The agent types of our own tool loop, and the API of each."""
_LOOP_TITLE = "Keystone's own agent"
_LOOP_BASE = "base: python:3.12-slim\n\n"
_EXAMPLE = "example"
_PRICES = "item,price\nbread,3.20\ncoffee,8.45\napples,4.10\ncheese,26.75\n"

_SPEC = """\
version: 1
id: {identity}
description: "What {title} is asked, and what must hold when it is done"

task:
  prompt: "Add up the prices in prices.csv. Write the total to total.txt: the number and nothing else."
workspace: {example}                  # the agent works in a copy of this folder

{place}agent:
  type: {name}
{model}  timeout: 10m

gateway:                            # what the agent says to its model goes through Keystone, which adds the key
  providers: [{provider}]
  budget: {{max_requests: {requests}}}        # then it is stopped; max_cost_usd and max_tokens are limits, too

invariants:
  total_is_right:
    description: "The total is right"
    gate: true                      # a gate: when it fails, the composite is 0
    check: {{type: file_content, path: total.txt, pattern: '^42\\.50?\\s*$'}}
  nothing_else:
    description: "Nothing else was changed"
    weight: 0.3
    check: {{type: diff, only: [total.txt]}}

scoring:
  pass_threshold: 0.85
"""
_CONTAINER_HEAD = """\
# The same as keystone.yaml, but for its id and for `base` and `setup`, which put the agent into a container: for the
# workflow, where nothing is installed, and for `keystone run container.yaml` where Docker is.
"""
_WORKFLOW = """\
# On every pull request {title} does the task of {spec}, and a comment says how it went.
# First add the secret {key} to the repository (Settings, Secrets and variables, Actions), and make
# `Evaluate` a required check of the branch. Pull requests of forks get no secrets: they end in error.
#
# Permissions: `contents: read` for the checkout, `pull-requests: write` for the comment.
name: agent
on:
  pull_request:
permissions: {{}}
concurrency:
  group: agent-${{{{ github.ref }}}}
  cancel-in-progress: true
jobs:
  evaluate:
    name: Evaluate
    runs-on: ubuntu-latest
    timeout-minutes: 30
    permissions:
      contents: read # the checkout
      pull-requests: write # the comment
    steps:
      - uses: actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1
        with:
          persist-credentials: false # the agent must not find a token
      - id: keystone
        uses: keystone-action/keystone-action@v{major} # zizmor: ignore[unpinned-uses] pin the commit of a release
        with:
          spec: {spec}
{where}          status-context: "" # no commit status; it would need statuses: write
        env:
          {key}: ${{{{ secrets.{key} }}}} # stays with Keystone: the agent never sees it
      - if: ${{{{ !cancelled() && steps.keystone.outputs.results-path }}}} # only what this run has written
        uses: actions/upload-artifact@bbbca2ddaa5d8feaa63e36b76fdaad77386f024f # v7.0.0
        with:
          name: keystone-results
          path: {results}
"""


def choose_agent(named: str | None, answers: TextIO, questions: TextIO, environ: Mapping[str, str]) -> str | None:
    """The preset that is meant; None = a small script stands in for an agent. named: by `--agent`; without it a person
    at a terminal is asked. Raises UsageError for a name that is not known."""
    if named is not None:
        return _require_known(named)
    if not (answers.isatty() and questions.isatty()):
        return None
    names = known_agents()
    found = [find_agent(name, environ) for name in preset_names()]
    questions.write("Which agent is to be judged?\n")
    for number, agent in enumerate(found, 1):
        here = f", {agent.path}" if agent.path else ""
        questions.write(f"  {number}  {agent.name} ({agent.preset.title}{here})\n")
    for number, name in enumerate(LOOPS, len(found) + 1):
        questions.write(f"  {number}  {name} ({_LOOP_TITLE}: nothing to install)\n")
    questions.write(f"  {len(names) + 1}  another one: a small script stands in for it\n")
    first = next((number for number, agent in enumerate(found, 1) if agent.path), len(names) + 1)
    while True:
        questions.write(f"Number or name [{first}]: ")
        questions.flush()
        line = answers.readline()
        if not line:
            raise UsageError("no agent was chosen", help=f"keystone init --agent NAME, of {listing(names)}")
        word = line.strip() or str(first)
        if word.isdecimal() and 1 <= int(word) <= len(names) + 1:
            return [*names, None][int(word) - 1]
        try:
            return _require_known(word)
        except UsageError as error:
            questions.write(f"{error.message}\n")


def known_agents() -> tuple[str, ...]:
    """What `--agent` can name."""
    return (*preset_names(), *LOOPS)


def _require_known(name: str) -> str:
    names = known_agents()
    if name in names:
        return name
    near = nearest(name, names)
    raise UsageError(
        f"no agent is known as {name!r}" + (f"; did you mean {near}?" if near else ""),
        help=f"known are {listing(names)}; without --agent, a small script stands in for yours",
    )


def write_agent_specs(name: str, directory: Path, environ: Mapping[str, str]) -> list[Path]:
    """Spec, workflow and example for this agent; returns their paths. Raises UsageError as `write_new_files` does."""
    if (directory / _EXAMPLE).exists():
        raise UsageError(
            f"{directory / _EXAMPLE} is already there", help="keystone init --agent NAME DIR writes into another one"
        )
    below, container = _below_repository(directory), sys.platform != "linux"
    if name in LOOPS:
        return write_new_files(directory, loop_files(name, below, container=container))
    return write_new_files(directory, agent_files(find_agent(name, environ), below, container=container))


def agent_files(agent: FoundAgent, below: str = "", *, container: bool = False) -> Mapping[str, str]:
    """The texts by their paths. below: where they are in the repository, "" = at its root. container: this machine can
    run agents in containers alone."""
    preset, image = agent.preset, _in_image(agent.preset)
    specs = {"keystone.yaml": _spec(agent, image if container else _shown(agent), "first-spec")}
    if not container:
        specs["container.yaml"] = _CONTAINER_HEAD + _spec(agent, image, "first-spec-in-container")
    return {**specs, **_beside(preset.title, list(specs)[-1], key_variable(agent.name), below)}


def loop_files(name: str, below: str = "", *, container: bool = False) -> Mapping[str, str]:
    """As `agent_files`, for our own tool loop: one spec will do everywhere, since nothing has to be installed."""
    model = f"  model: {_MODELS[LOOPS[name]]}\n"
    spec = _filled(name, _LOOP_TITLE, LOOPS[name], model, _LOOP_BASE if container else "", "first-spec")
    return {"keystone.yaml": spec, **_beside(_LOOP_TITLE, "keystone.yaml", key_variable(name), below)}


def _beside(title: str, spec: str, key: str, below: str) -> Mapping[str, str]:
    """The example, and the workflow for this spec."""
    workflow = _WORKFLOW.format(
        title=title,
        spec=spec,
        key=key,
        major=__version__.partition(".")[0],
        where=f"          working-directory: {json.dumps(below)}\n" if below else "",
        results=json.dumps(f"{below}/keystone-results") if below else "keystone-results",
    )
    return {f"{_EXAMPLE}/prices.csv": _PRICES, ".github/workflows/agent.yml": workflow}


def key_variable(name: str) -> str:
    """The variable with the key that the first spec of this agent needs."""
    return VARIABLES[LOOPS[name] if name in LOOPS else load_preset(name).providers[0]][0]


def next_steps(name: str, directory: Path, spec: str, environ: Mapping[str, str]) -> Iterator[str]:
    """What a newcomer does next, line by line. directory: where the files are. spec: keystone.yaml, as `keystone run`
    is told it from here."""
    key, title, install = key_variable(name), _LOOP_TITLE, ""
    in_container = not (directory / "container.yaml").exists()
    if name in LOOPS:
        in_container = sys.platform != "linux"
    else:
        agent = find_agent(name, environ)
        title, install = agent.preset.title, "" if agent.path else agent.preset.install_command()
    yield "Next:"
    if install and not in_container:
        yield f"  {install}"
    if not environ.get(key, "").strip():
        yield f"  export {key}=...   # your key; {title} gets a worthless one instead"
    docker = "   # needs Docker" if in_container else ""
    yield f"  keystone run {spec}{docker}"
    yield f"It asks a real model, at most {_REQUESTS} times."
    yield f"To see it fail, write 43 for 42 in {spec} and run it again."
    yield (
        f"On pull requests .github/workflows/agent.yml runs it: commit the files, and add the secret {key} to the"
        " repository."
    )
    if _below_repository(directory):
        yield "GitHub finds workflows at the root of a repository alone: move .github there."


def _spec(agent: FoundAgent, place: str, identity: str) -> str:
    preset, provider = agent.preset, agent.preset.providers[0]
    model = "  # model: NAME                     # without it, the program's own\n"
    if preset.model.required:
        named = f"{provider}/{_MODELS[provider]}" if len(preset.providers) > 1 else _MODELS[provider]
        model = f"  model: {named}\n"
    return _filled(agent.name, preset.title, provider, model, place, identity)


def _filled(name: str, title: str, provider: str, model: str, place: str, identity: str) -> str:
    return _SPEC.format(
        identity=identity,
        title=title,
        example=_EXAMPLE,
        place=place,
        name=name,
        model=model,
        provider=provider,
        requests=_REQUESTS,
    )


def _in_image(preset: Preset) -> str:
    command = json.dumps(preset.install_command(preset.seen))
    return f"base: {_IMAGES[preset.package.source]}\nsetup:\n  commands: [{command}]\n\n"


def _shown(agent: FoundAgent) -> str:
    if not agent.hidden:
        return ""
    home = agent.environ.get("HOME") or "/"
    names = [
        f"~/{one.relative_to(home)}" if home != "/" and one.is_relative_to(home) else str(one) for one in agent.hidden
    ]
    return f"resources:\n  readable: {json.dumps(names)}   # where {agent.preset.program} is on this machine\n\n"


def _below_repository(directory: Path) -> str:
    """Where a directory lies in its repository; "" at its root, or where there is none."""
    place = directory.resolve()
    root = next((folder for folder in (place, *place.parents) if (folder / ".git").exists()), place)
    return "" if root == place else place.relative_to(root).as_posix()
