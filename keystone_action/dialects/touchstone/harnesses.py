"""Harnesses of a Touchstone case → agents: those that Touchstone brings, and `harnesses.yaml` (spec.md 5.5)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from string import Formatter
from typing import Any, get_args

from yaml.nodes import Node

from keystone_action.dialects.nodes import without_expressions
from keystone_action.dialects.touchstone.reading import CaseField, CaseReader
from keystone_action.spec.loading.author_files import read_author_text
from keystone_action.spec.loading.diagnostics import listing, nearest, show_value
from keystone_action.spec.loading.yaml_loader import build_data, parse_yaml
from keystone_action.spec.models.agents import CommandAgent, PresetAgent, TraceFormat

HARNESSES_FILE = "harnesses.yaml"
DEFAULT_TIMEOUT = 1800.0
"""Seconds that a harness may take."""
PROMPT_LIMIT = 100 << 10
"""Bytes of a prompt that can be an argument: the kernel takes 128 KiB for each."""
ECHO = "echo"
_ECHO = 'cat "$KEYSTONE_PROMPT_FILE" && { cat "$KEYSTONE_PROMPT_FILE" && echo; } > ANSWER.md'
_PLACEHOLDERS = ("prompt", "model", "sandbox", "artifacts_dir", "mcp")
_PRESETS: Mapping[str, str] = {
    "claude-code": "claude-code",
    "claude-code-stream": "claude-code",
    "claude-acp": "claude-code",
    "codex": "codex",
    "gemini": "gemini",
    # Touchstone's own loop runs inside of it; this one is a program that asks the same API.
    "openai": "mini-swe-agent",
    "openai-compatible": "mini-swe-agent",
}
"""Harnesses that are known agents here: behind the gateway, without a real key."""
_ONE_API: Mapping[str, str] = {"mini-swe-agent": "openai/"}
"""What stands before the model's name where a program can ask several APIs."""
_ADAPTERS: Mapping[str, str] = {"claude-acp": "Claude Code"}
"""Harnesses that are an adapter of another program's: that program runs by its command line."""
_BY_PROTOCOL = ("droid", "droid-fast", "devin-cli")
_UNREAD = ("acp_agents.yaml", "openai_agents.yaml")
KNOWN = (ECHO, *_PRESETS)
"""Harnesses that need no file."""


@dataclass(frozen=True, slots=True)
class Harness:
    """How a harness is started."""

    name: str
    argv: tuple[tuple[str | tuple[str], ...], ...]
    """The parts of each argument; a placeholder is a tuple of its name."""
    timeout: float = DEFAULT_TIMEOUT
    env: Mapping[str, str] = field(default_factory=dict)
    trace: Mapping[str, Any] | None = None
    directory: Path | None = None
    preset: str | None = None
    """The type of agent that it is, for the harnesses that Touchstone brings."""

    @property
    def leaves_trace(self) -> bool:
        """Whether what it does is told by somebody."""
        return self.trace is not None or self.preset is not None

    def values(self, model: str, prompt: str | None) -> dict[str, str | None]:
        """What placeholders stand for; without artifacts there are none. None: known only when the agent starts."""
        return {"prompt": prompt, "sandbox": None, "model": model, "artifacts_dir": "", "mcp": ""}

    def agent(self, model: str, prompt: str | None, spec_directory: Path) -> dict[str, Any]:
        """The fields of the agent for a model; its texts are for interpolation. prompt: None where it is another one in
        each turn."""
        if self.preset is not None:
            name = f"{_ONE_API.get(self.preset, '')}{model}"
            return {"type": self.preset, "model": without_expressions(name), "timeout": self.timeout}
        values = self.values(model, prompt)
        document: dict[str, Any] = {
            "type": "command",
            "command": ["".join(_text(_join_parts(parts, values))) for parts in self.argv],
            "timeout": self.timeout,
            "env": {name: without_expressions(value) for name, value in self.env.items()},
        }
        if self.trace is not None:
            document["trace"] = dict(self.trace)
        if self.directory is not None:
            document["dir"] = os.path.relpath(self.directory, spec_directory)
        return document


def harness_agent(document: Mapping[str, Any]) -> CommandAgent | PresetAgent:
    """The agent itself."""
    kind = CommandAgent if document["type"] == "command" else PresetAgent
    return kind.model_validate(document, by_alias=True)


def _join_parts(parts: Sequence[str | tuple[str]], values: Mapping[str, str | None]) -> list[str | tuple[str]]:
    """Literal texts, and the placeholders whose values are known only when the agent starts."""
    joined: list[str | tuple[str]] = [""]
    for part in parts:
        value = part if isinstance(part, str) else values[part[0]]
        if value is None:
            joined += [part, ""]
        else:
            joined[-1] = f"{joined[-1]}{value}"
    return joined


_LATER: Mapping[str, str] = {"sandbox": "{{ workspace }}", "prompt": "{{ task.prompt }}"}


def _text(joined: Sequence[str | tuple[str]]) -> Iterator[str]:
    for piece in joined:
        yield without_expressions(piece) if isinstance(piece, str) else _LATER[piece[0]]


def _built_in(name: str) -> Harness | None:
    if name == ECHO:
        return Harness(name, (("/bin/sh",), ("-c",), (_ECHO,)))
    preset = _PRESETS.get(name)
    return None if preset is None else Harness(name, (), preset=preset)


@dataclass(slots=True)
class Harnesses:
    """The harnesses that a case can name."""

    declared: dict[str, CaseField] = field(default_factory=dict)
    file: Path | None = None
    """The `harnesses.yaml` that was read, if there is one."""
    reader: CaseReader | None = None
    """The reader of that file."""
    unread: tuple[str, ...] = ()
    """Names of files that are not supported."""

    @classmethod
    def nearest(cls, directory: Path, root: Path) -> Harnesses:
        """The harnesses of the nearest `harnesses.yaml` upwards. Raises SpecError when it can't be read at all."""
        inside = [place for place in (directory, *directory.parents) if place.is_relative_to(root)]
        unread = tuple(name for name in _UNREAD if any((place / name).exists() for place in inside))
        path = next((place / HARNESSES_FILE for place in inside if (place / HARNESSES_FILE).exists()), None)
        if path is None:
            return cls(unread=unread)
        document = parse_yaml(read_author_text(path, str(path)), str(path))
        if document is None:
            return cls(file=path)
        value, problems = build_data(document)
        reader = CaseReader(document, problems)
        whole = CaseField("", document.node, document.node, value)
        if not isinstance(value, dict):
            reader.problem(document.node, "expected a mapping of harnesses", found=show_value(value))
            return cls(file=path, reader=reader)
        return cls(reader.fields(whole, tuple(value)), path, reader, unread)

    def find(self, reader: CaseReader, wanted: CaseField) -> Harness | None:
        """The harness of that name; None, and a problem, when there is none that works here."""
        name = str(wanted.value)
        if name in self.declared:
            return self._declared_harness(name)
        built_in = _built_in(name)
        if name in _ADAPTERS:
            message = f"the harness {show_value(name)} starts {_ADAPTERS[name]} through an adapter"
            reader.warning(wanted.node, f"{message}; here {_ADAPTERS[name]} is run by its command line")
        if built_in is None:
            known = sorted({*KNOWN, *self.declared})
            where = f"in {self.file}" if self.file else f"in a {HARNESSES_FILE} beside the case or above it"
            out = f"declare its command line {where}: `{name}: {{argv: [program, '{{prompt}}']}}`"
            out += f" ({listing(self.unread)} is not read)" if self.unread else ""
            if name in _BY_PROTOCOL:
                message = f"the harness {show_value(name)} speaks a protocol over stdio, which is not supported"
                reader.problem(wanted.node, message, help=out)
            else:
                close, expected = nearest(name, known), f"one of {listing(known)}"
                message = f"unknown harness {show_value(name)}"
                reader.problem(wanted.node, message, expected=expected, suggestion=close, help=out)
        return built_in

    def _declared_harness(self, name: str) -> Harness | None:
        assert self.reader is not None
        assert self.file is not None
        reader = self.reader
        fields = reader.fields(self.declared[name], ("argv", "dir", "env", "timeout_s", "trace"), required=("argv",))
        argv = [_argument(reader, item) for item in reader.items(fields.get("argv"))]
        if "argv" in fields and fields["argv"].value == []:
            reader.problem(fields["argv"].node, f"{name}.argv: expected a program and its arguments")
        env = {key: _variable(one.value) for key, one in reader.strings(fields.get("env")).items()}
        return Harness(
            name,
            tuple(argv),
            timeout=reader.number(fields.get("timeout_s"), DEFAULT_TIMEOUT),
            env=env,
            trace=_trace(reader, fields.get("trace")),
            directory=self._directory(reader, fields.get("dir")),
        )

    def _directory(self, reader: CaseReader, of: CaseField | None) -> Path | None:
        name = reader.text(of)
        if of is None or not name or self.file is None:
            return None
        path = (self.file.parent / name).resolve()
        if not path.is_dir() or not path.is_relative_to(self.file.parent.resolve()):
            advice = f"a directory below {self.file.parent} with the harness's own code"
            reader.problem(of.node, f"{of.name}: there is no directory {show_value(name)}", expected=advice)
            return None
        return path


def _variable(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _trace(reader: CaseReader, of: CaseField | None) -> dict[str, Any] | None:
    """`{format, path or stdout: true}`: ours, since command lines of Touchstone leave no trace."""
    if of is None:
        return None
    fields = reader.fields(of, ("format", "path", "stdout"), required=("format",))
    kind = reader.choice(fields.get("format"), get_args(TraceFormat), "touchstone")
    if reader.boolean(fields.get("stdout")):
        if "path" in fields:
            reader.problem(fields["path"].key, f"{of.name}: 'path' beside 'stdout'", expected="one of the two")
        return {"format": kind, "stdout": True}
    path = reader.text(fields.get("path"))
    if "path" not in fields:
        reader.problem(of.key, f"{of.name}: neither 'path' nor 'stdout: true' is there")
    elif is_outside(path):
        reader.problem(fields["path"].node, f"{of.name}.path leaves the workspace", found=show_value(path))
        path = ""
    return {"format": kind, "path": path or "trace.jsonl"}


def is_outside(path: str) -> bool:
    """Whether a path that is meant to be of the workspace is absolute or has `..` in it."""
    return path.startswith("/") or ".." in path.split("/")


def _argument(reader: CaseReader, item: CaseField) -> tuple[str | tuple[str], ...]:
    """One argument by the rules of `str.format`: `{name}`, and `{{` for a brace."""
    parts: list[str | tuple[str]] = []
    if not isinstance(item.value, str):
        reader.problem(item.node, f"{item.name}: expected a text", found=show_value(item.value))
        return ()
    try:
        pieces = list(Formatter().parse(item.value))
    except ValueError as error:
        advice = "a single brace is written twice: {{ or }}"
        reader.problem(item.node, f"{item.name}: {str(error).lower()}", found=show_value(item.value), help=advice)
        return ()
    for literal, name, form, conversion in pieces:
        parts.append(literal)
        if name is None:
            continue
        if name not in _PLACEHOLDERS:
            expected = f"one of {listing('{' + one + '}' for one in _PLACEHOLDERS)}"
            close, advice = nearest(name, _PLACEHOLDERS), "a brace that is meant as one is written twice: {{ or }}"
            message = f"{item.name}: unknown placeholder {show_value('{' + name + '}')}"
            reader.problem(item.node, message, expected=expected, suggestion=close, help=advice)
        elif form or conversion:
            reader.problem(
                item.node, f"{item.name}: {{{name}}} takes no format or conversion", found=show_value(item.value)
            )
        else:
            parts.append((name,))
    return tuple(parts)


def check_call(reader: CaseReader, harness: Harness, model: CaseField, said: Sequence[tuple[str, Node]]) -> None:
    """Report what this harness can't be called with. said: the prompt, and the turns after it."""
    most = max((parts.count(("prompt",)) for parts in harness.argv), default=0)
    for prompt, prompt_node in said:
        _check_size(reader, harness, len(prompt.encode("utf-8", "surrogatepass")) * most, prompt_node)
    values = harness.values(model.value, said[0][0] if len(said) == 1 else None)
    for joined in (_join_parts(parts, values) for parts in harness.argv):
        before = {(str(piece)[-1:], after) for piece, after in pairwise(joined) if isinstance(after, tuple)}
        for last, (name,) in sorted(before):
            if last not in ("{", "\\"):
                continue
            message = f"the harness {show_value(harness.name)} has {{{name}}} after {show_value(last)}"
            advice = {
                "sandbox": "the harness starts in that directory: use a relative path",
                "prompt": "with turns, let it read the file that the variable KEYSTONE_PROMPT_FILE names",
            }[name]
            reader.problem(model.node, f"{message}, which is not supported", help=advice)
            break


def _check_size(reader: CaseReader, harness: Harness, size: int, prompt_node: Node) -> None:
    if size > PROMPT_LIMIT:
        message = (
            f"the prompt has {size >> 10:,} KiB, and the harness {show_value(harness.name)} takes it as an argument"
        )
        advice = "let it read the file that the variable KEYSTONE_PROMPT_FILE names"
        reader.problem(prompt_node, message, expected=f"at most {PROMPT_LIMIT >> 10} KiB", help=advice)
