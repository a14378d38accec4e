"""From a preset's file of data to the command of one cell."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from keystone_action.errors import HarnessError
from keystone_action.gateway.upstreams import ModelAddress
from keystone_action.spec.models.agents import AgentBase, AgentTrace, PresetAgent
from keystone_action.spec.models.fields import StrictModel

_FOLDER = Path(__file__).parent
_NAME = re.compile(r"\$\{([a-z_.]+)\}")
_VERSION = re.compile(r"\d+(?:\.\d+)+(?:[-+]\w[\w.]*\w)?")
_INSTALL: Mapping[str, Sequence[str]] = {"npm": ("npm", "install", "--global"), "pip": ("pip", "install")}
LATEST = "latest"
_TURN = "${turn}"
_AT: Mapping[str, str] = {"npm": "@", "pip": "=="}
Texts = dict[str, str]


def _fill(text: str, values: Mapping[str, str]) -> str:
    return _NAME.sub(lambda match: values[match[1]], text)


class Package(StrictModel):
    """Where its program comes from."""

    source: Literal["npm", "pip"]
    name: str
    also: list[str] = Field(default_factory=list)
    """Packages that have to be installed beside it."""

    def names(self, version: str = "") -> tuple[str, ...]:
        """What its package manager is told. version: empty or `latest` = the newest."""
        return (f"{self.name}{_AT[self.source]}{version}" if version not in ("", LATEST) else self.name, *self.also)


class ModelArguments(StrictModel):
    """How the program is told its model."""

    arguments: Annotated[list[str], Field(min_length=1)]
    required: bool = False
    """Whether the program has no model of its own."""


class WithoutProviderTools(StrictModel):
    """What keeps the program from using tools that the provider runs."""

    arguments: list[str] = Field(default_factory=list)
    files: Texts = Field(default_factory=dict)
    """They take the place of those of the preset that have the same names."""


class Pinned(StrictModel):
    """Variables that say where its requests go and with which key: files of a workspace must not change them. Each is
    set to what the agent's environment has, and to nothing where it has none."""

    variables: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    arguments: list[str] = Field(default_factory=list)
    """Arguments that make the variables win over such files: `${pinned}` is all of them as a JSON object. An argument
    with `${name}` and `${value}` stands there once for each."""

    def values(self, environment: Mapping[str, str]) -> Texts:
        """Of each variable. environment: all that the agent has."""
        return {name: environment.get(name, "") for name in self.variables}


class McpServers(StrictModel):
    """How the program is told of MCP servers, where it has a client for them: texts that may hold `${name}` and
    `${url}` of one, and `${servers}`, all of them as a JSON object by name."""

    server: Annotated[dict[str, Any], Field(strict=False)] = Field(default_factory=dict)
    """What it is told of one server."""
    arguments: list[str] = Field(default_factory=list)
    """One with `${name}` stands there once for each server."""
    variable: str | None = None
    """A variable of `environment` whose value is JSON: the servers are put into it under `key`."""
    file: str | None = None
    """One of `files` whose content is JSON: the servers are put into it under `key`."""
    key: str = ""

    def told(self, urls: Mapping[str, str]) -> dict[str, Any]:
        """What it is told of these servers, by name."""
        return {
            name: {
                key: _fill(value, {"url": url}) if isinstance(value, str) else value
                for key, value in self.server.items()
            }
            for name, url in urls.items()
        }

    def argv(self, urls: Mapping[str, str]) -> Iterator[str]:
        """The arguments for these servers."""
        for text in self.arguments if urls else ():
            if "${name}" in text:
                yield from (_fill(text, {"name": name, "url": url}) for name, url in urls.items())
            else:
                yield _fill(text, {"servers": json.dumps(self.told(urls))})

    def put_into(self, text: str, urls: Mapping[str, str]) -> str:
        """A text that is JSON, with these servers in it."""
        return json.dumps({**json.loads(text), self.key: self.told(urls)}) if urls else text


# From one folder to the same place below another one. A glob that matches nothing stands for itself.
_MOVE = (
    'move() { from=$1 to=$2; shift 2; for one; do test -e "$one" || continue; name=${one#"$from"/}; '
    'mkdir -p "$to/${name%/*}" && mv "$one" "$to/$name" || return; done; }'
)


class Resumption(StrictModel):
    """How the program goes on with what was said before, in a process of its own for each turn."""

    session: Literal["chosen", "printed"] | None = None
    """Where the id of its session comes from, which `${session}` is in the arguments: it is told one, a UUID, or it
    prints one."""
    printed: str = ""
    """A regular expression for the beginning of what it prints in the first turn; its group is the id."""
    first: list[str] = Field(default_factory=list)
    """Arguments of the first turn, where more turns follow: they take the place of `${turn}` in argv, or stand behind
    all of ours."""
    next: Annotated[list[str], Field(min_length=1)]
    """The same for all later turns."""
    settings: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    """What it reads as its settings below HOME: removed before each later turn, and then given anew, so that nothing
    counts that an agent wrote there."""
    kept: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Of that, the folders and files of its sessions, which stay: each below a folder. Their names may be globs."""
    usage_of_session: bool = False
    """Whether the figures that it prints in a later turn count what was used before."""

    def session_of(self, stdout: str) -> str:
        """The id that it printed; empty where it printed none."""
        found = re.match(self.printed, stdout) if self.printed else None
        return found[1] if found else ""

    def clean_up(self, files: Iterable[str]) -> str:
        """A command of the shell that removes the settings, and nothing else. It fails where an agent saw to it that
        they can't be removed. files: of ours below HOME, which are among them."""
        away = '"$HOME/.keystone-sessions"'
        lines = [
            f"rm -rf {away}",
            f"mkdir {away}",
            _MOVE,
            " ".join([f'move "$HOME" {away}', *(f'"$HOME"/{place}' for place in self.kept)]),
            "rm -rf " + " ".join(f'"$HOME/{place}"' for place in (*self.settings, *files)),
            " ".join([f'move {away} "$HOME"', *(f"{away}/{place}" for place in self.kept)]),
            f"rm -rf {away}",
        ]
        return " && ".join(lines)


@dataclass(frozen=True, slots=True)
class PresetCommand:
    """How the agent of one cell is started."""

    argv: tuple[str, ...]
    environment: Texts
    """What the spec says wins over it."""
    home_files: Texts
    """Contents by their paths below HOME."""


class Preset(StrictModel):
    """The data of one agent. Texts of argv, arguments, environment and files may hold `${program}`, `${model}`,
    `${prompt_yaml}` (the prompt as a YAML text), `${session}` (of a conversation), `${NAME.url}` and `${NAME.key}` of a
    provider, and `${url}` and `${key}` of the one that it uses."""

    title: str
    """What people call the agent."""
    program: str
    """Looked for on PATH, unless the spec's `binary` names another."""
    package: Package
    seen: str
    """The version that all this is known of."""
    version: list[str]
    """Arguments with which the program prints its version."""
    providers: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    """APIs that it can use. Where there are several, a model's name says which one (`openai/gpt-5`)."""
    argv: Annotated[list[str], Field(min_length=1)]
    """The arguments for the model, those without the provider's tools and the spec's own are added."""
    model: ModelArguments
    without_provider_tools: WithoutProviderTools = Field(default_factory=WithoutProviderTools)
    stdin: Literal["prompt"] | None = None
    """What it is given there: the prompt, or nothing."""
    environment: Texts = Field(default_factory=dict)
    files: Texts = Field(default_factory=dict)
    """Contents by their paths below HOME."""
    trace: AgentTrace | None = None
    mcp: McpServers | None = None
    """None for a program without an MCP client."""
    conversation: Resumption | None = None
    """None for a program that can't go on with a session."""
    pinned: Pinned | None = None
    """What keeps files of a workspace from leading its requests elsewhere."""
    steered_by: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Globs of the files in a workspace that steer it: instructions, settings, hooks and tools."""
    switched_off: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Those of `steered_by` that count for nothing here, since nothing of ours would win over them."""
    harmless_tools: Annotated[frozenset[str], Field(strict=False)] = frozenset()
    """Those of its own tools that run no command, whatever they are asked to do."""
    varies: dict[Literal["system", "messages", "results", "tools"], Annotated[tuple[str, ...], Field(strict=False)]] = (
        Field(default_factory=dict)
    )
    r"""Regular expressions for what its requests have of the machine, the date or the commit, and nothing else, by the
    place where the program writes it: the system prompt, the messages, results of its tools, or what it says of its
    tools. What they match counts as equal when a recording is replayed. They see every text of that place, where paths
    and addresses have their names already (`{workspace}`). A file of the workspace may say the same words: so a pattern
    matches no free text, or it is bound to the beginning (`\A`) or the end (`\Z`) of the program's own text."""
    ids: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Regular expressions, each with one group: an id that the program makes anew in each run, and that the model may
    say back. They see texts as they were sent."""

    def needed(self, agent: PresetAgent) -> tuple[str, ...]:
        """The names of the providers without which this agent can't work. Raises HarnessError for a model that names
        none of them, or is missing."""
        if agent.model is None and self.model.required:
            example = f"{self.providers[0]}/NAME" if len(self.providers) > 1 else "NAME"
            raise HarnessError(f"{self.title} has no model of its own", help=f"Name one: `agent.model: {example}`.")
        if len(self.providers) == 1 or agent.model is None:
            return self.providers[:1]
        name, slash, _ = agent.model.partition("/")
        if slash and name in self.providers:
            return (name,)
        ways = " or ".join(f"`{provider}/{agent.model}`" for provider in self.providers)
        raise HarnessError(f"the model {agent.model} of {self.title} names no provider", help=f"Write {ways}.")

    def command(
        self,
        agent: PresetAgent,
        gateways: Mapping[str, ModelAddress],
        *,
        deny_provider_tools: bool,
        prompt_file: Path,
        environment: Mapping[str, str],
        mcp_servers: Mapping[str, str] | None = None,
        turn: Sequence[str] = (),
        session: str = "",
    ) -> PresetCommand:
        """gateways: by the names of providers. prompt_file: with the prompt, as we see it. environment: what the agent
        has without its preset. mcp_servers: URLs by name; a program without an MCP client is not told of them. turn:
        arguments of this turn of a conversation. session: its id. Raises
        HarnessError."""
        needed = self.needed(agent)
        for name in needed:
            if name not in gateways:
                known = ", ".join(gateways) or "none"
                raise HarnessError(f"{self.title} needs the provider {name}; gateway.providers has {known}")
        values = {
            "program": self.program if agent.binary is None else agent.binary,
            "model": agent.model or "",
            "session": session,
            "prompt_yaml": _yaml_text(prompt_file.read_bytes().decode("utf-8", "replace")),
            **gateways[needed[0]].as_mapping(),
        }
        for name in self.providers:
            address = gateways.get(name, ModelAddress("", ""))  # one of several that this model does not need
            values |= {f"{name}.{key}": value for key, value in address.as_mapping().items()}
        mcp, servers = self.mcp or McpServers(), mcp_servers or {}
        own = {name: _fill(text, values) for name, text in self.environment.items()}
        if mcp.variable is not None:
            own[mcp.variable] = mcp.put_into(own[mcp.variable], servers)
        pinned = self.pinned.values({**own, **environment}) if self.pinned is not None else {}
        denied = self.without_provider_tools if deny_provider_tools else WithoutProviderTools()
        arguments = [*(self.model.arguments if agent.model is not None else ()), *denied.arguments]
        argv = list(chain.from_iterable(turn if text == _TURN else (text,) for text in self.argv))
        if _TURN not in self.argv:
            arguments += turn
        files = {path: _fill(text, values) for path, text in {**self.files, **denied.files}.items()}
        if mcp.file is not None:
            files[mcp.file] = mcp.put_into(files[mcp.file], servers)
        return PresetCommand(
            argv=(
                *(_fill(text, values) for text in argv),
                *self._pinning_arguments(pinned),
                *mcp.argv(servers),
                *(_fill(text, values) for text in arguments),
                *agent.args,
            ),
            environment={**own, **pinned},
            home_files=files,
        )

    def _pinning_arguments(self, pinned: Texts) -> Iterator[str]:
        for text in self.pinned.arguments if self.pinned is not None else ():
            if "${name}" in text:
                yield from (_fill(text, {"name": name, "value": value}) for name, value in pinned.items())
            else:
                yield _fill(text, {"pinned": json.dumps(pinned)})

    def install_command(self, version: str = "") -> str:
        """What a person types to install it. version: empty or `latest` = the newest."""
        return " ".join([*_INSTALL[self.package.source], *map(shlex.quote, self.package.names(version))])

    def version_in(self, printed: str) -> str:
        """The version in what the program printed; empty where there is none."""
        found = _VERSION.search(printed)
        return found[0] if found else ""


def _yaml_text(text: str) -> str:
    """On one line, in quotes; JSON's would not do, whose escapes YAML reads otherwise."""
    import yaml

    return yaml.safe_dump(text, default_style='"', width=sys.maxsize).rstrip("\n")


def preset_names() -> tuple[str, ...]:
    """Of all presets, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@cache
def load_preset(name: str) -> Preset:
    """name: an agent type, one of `preset_names`."""
    import yaml

    text = (_FOLDER / f"{name}.yaml").read_text("utf-8")
    return Preset.model_validate(yaml.load(text, Loader=yaml.CSafeLoader))


def with_preset(agent: AgentBase) -> AgentBase:
    """The agent, with what its preset says of stdin and of the transcript where the spec does not. All others as they
    are."""
    if not isinstance(agent, PresetAgent):
        return agent
    preset = load_preset(agent.type)
    return agent.model_copy(update={"stdin": agent.stdin or preset.stdin, "trace": agent.trace or preset.trace})
