"""What differs between two versions of a workflow in how it calls us, in sentences: `threshold 0.85 → 0.5`.

A pure comparison of two texts. The author of the second may want to pass: what can let more pass comes
first. GitHub's names of inputs ignore case; its other keys don't.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from keystone_action.gate.findings import short_value
from keystone_action.spec.loading.yaml_loader import parse_yaml

MAX_STEPS = 5_000
"""Of a file, those that aliases repeat counted as often."""
MAX_CALLS = 100
MAX_DIFFERENCES = 20
SECRETS = frozenset({"github-token", "registry-password", "registry-username"})
"""Inputs whose values no sentence repeats."""
_DECIDING = (
    *(
        "threshold",
        "fail-on",
        "spec-from",
        "fail-on-skipped",
        "fail-on-stale",
        "gateway",
        "spec",
        "tags",
        "params",
        "replicas",
        "shard",
        "shards",
    ),
    *("mode", "results", "baseline", "judge-fast", "judge-strong", "sandbox", "working-directory", "timeout", "env"),
    *("allow-pull-request-target", "summary-template"),
)
"""Inputs that a verdict or an exit code depends on; what may hold of a spec's field holds of its input."""
_LENIENCE = {"": 0, "threshold": 0, "regression": 1, "error": 2, "never": 3}
GRAVEST = 0
_LOST, _FORGIVEN, _INPUT, _CONDITION, _OTHER, HARMLESS = range(6)
"""What is told first."""
_SETTINGS = {"continue-on-error": _FORGIVEN, "if": _CONDITION}
_OF_JOB = " of the job"
_COMMIT = re.compile(r"@([0-9a-f]{12})[0-9a-f]{28,52}$")

_LABEL = 40

Sentence = tuple[int, int, str]
"""Rank, place among those of one rank, text."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One step, or job, that uses an action or a workflow. settings: `if` and the like, its own and its job's."""

    place: str
    uses: str
    inputs: dict[str, str]
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class Workflow:
    """What is to be known of a workflow, or of an action made of steps. local: all the paths that it uses of its own
    repository, `./` left out. triggers: what is at `on`, to be compared."""

    calls: tuple[_Call, ...] = ()
    local: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()


def read_workflow(text: str, name: str, is_ours: Callable[[str], bool]) -> Workflow:
    """name: of the file, for messages. is_ours: of what stands at `uses`. Raises SpecError for what is not YAML, and
    ValueError for more than is looked at."""
    document = parse_yaml(text, name)
    return Workflow() if document is None else _Reader(is_ours).read(document.node)


def ranked_differences(before: Workflow, after: Workflow) -> tuple[int, tuple[str, ...]]:
    """How grave the gravest difference is (0 is the gravest, HARMLESS means that there is none), and a sentence for
    each, at most MAX_DIFFERENCES and one that counts the rest."""
    found: list[Sentence] = []
    pairs, lost, new = _pair_calls(before.calls, after.calls)
    several = max(len(before.calls), len(after.calls)) > 1
    for old, now in pairs:
        where = f"{now.place}: " if several else ""
        found += [(rank, order, f"{where}{text}") for rank, order, text in _changes(old, now)]
    found += [(_LOST, 0, f"{_shorten(one.uses)} no longer used in {one.place}") for one in lost]
    found += [(_OTHER, 0, f"{_shorten(one.uses)} added in {one.place}{_name_inputs(one.inputs)}") for one in new]
    if before.triggers != after.triggers:
        found.append((_CONDITION, 2, "what it runs on changed"))
    found.sort()
    texts = [text for _, _, text in found]
    more = len(texts) - MAX_DIFFERENCES
    sentences = (*texts[:MAX_DIFFERENCES], f"and {more:,} more differences") if more > 0 else tuple(texts)
    return min((rank for rank, _, _ in found), default=HARMLESS), sentences


def _pair_calls(
    before: Sequence[_Call], after: Sequence[_Call]
) -> tuple[list[tuple[_Call, _Call]], list[_Call], list[_Call]]:
    """What is the same call in both: at the same place, else of the same action, in order; else the only one left."""
    pairs: list[tuple[_Call, _Call]] = []
    lost, new = list(before), list(after)

    def pair(same: Callable[[_Call, _Call], bool]) -> None:
        for old in tuple(lost):
            now = next((one for one in new if same(old, one)), None)
            if now is not None:
                pairs.append((old, now))
                lost.remove(old)
                new.remove(now)

    pair(lambda old, now: (old.place, _name(old.uses)) == (now.place, _name(now.uses)))
    pair(lambda old, now: _name(old.uses) == _name(now.uses))
    if len(lost) == len(new) == 1:
        pair(lambda *_: True)
    return pairs, lost, new


def _changes(old: _Call, now: _Call) -> Iterator[Sentence]:
    if old.uses != now.uses:
        yield _CONDITION, 1, f"uses {_shorten(old.uses)} → {_shorten(now.uses)}"
    yield from _changed_settings(old.settings, now.settings)
    for name in (*old.inputs, *(name for name in now.inputs if name not in old.inputs)):
        before, after = old.inputs.get(name), now.inputs.get(name)
        if before != after:
            order = _DECIDING.index(name) if name in _DECIDING else len(_DECIDING)
            rank = _INPUT if _can_weaken(name, before or "", after or "") else _OTHER
            yield rank, order, _change(name, before, after)


def _changed_settings(old: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Sentence]:
    for name in dict.fromkeys((*old, *now)):
        if old.get(name) != now.get(name):
            yield _SETTINGS[name.removesuffix(_OF_JOB)], 0, _change(name, old.get(name), now.get(name))


def _change(name: str, before: str | None, after: str | None) -> str:
    old, new = ("" if value is None or name in SECRETS else short_value(value) for value in (before, after))
    if before is None:
        return f"{name} added: {new}" if new else f"{name} added"
    if after is None:
        return f"{name} removed (was {old})" if old else f"{name} removed"
    return f"{name} {old} → {new}" if old and new and old != new else f"{name} changed"


def _can_weaken(name: str, before: str, after: str) -> bool:
    """Whether an input that is not what it was can let more pass; what only a run can tell may."""
    if name == "threshold":
        try:
            return not float(after) >= float(before)
        except ValueError:
            return True
    if name == "fail-on":
        return _LENIENCE.get(after.strip(), 4) > _LENIENCE.get(before.strip(), 0)
    if name == "spec-from":
        return after.strip() != "base"
    if name in ("fail-on-skipped", "fail-on-stale"):
        return after.strip() != "true"
    if name == "gateway":
        return after.strip() != "live"
    return name in _DECIDING


def _name_inputs(inputs: Mapping[str, str]) -> str:
    told = [_change(name, None, inputs[name]).replace(" added: ", " ") for name in _DECIDING if name in inputs]
    return f" ({', '.join(told[:5])})" if told else ""


def _name(uses: str) -> str:
    return uses.partition("@")[0].lower()


def _shorten(uses: str) -> str:
    return short_value(_COMMIT.sub(r"@\1", uses)) or "an action"


def _settings(node: Mapping[str, Node]) -> dict[str, str]:
    return {name: _text(node[name]) for name in _SETTINGS if name in node}


class _Reader:
    """Reads one file. Aliases can repeat a large node for few bytes, so what is large is looked at once."""

    def __init__(self, is_ours: Callable[[str], bool]) -> None:
        self._is_ours = is_ours
        self._seen: dict[int, dict[str, Node]] = {}
        self._calls: list[_Call] = []
        self._local: dict[str, None] = {}

    def read(self, node: Node) -> Workflow:
        top, steps = self._mapping(node), 0
        for name, item in self._mapping(top.get("jobs")).items():
            job, place = self._mapping(item), f"job {_label(name)}"
            self._add(place, job, {})
            settings = {f"{setting}{_OF_JOB}": text for setting, text in _settings(job).items()}
            steps = self._add_steps(job.get("steps"), f"{place}, ", settings, steps + 1)
        self._add_steps(self._mapping(top.get("runs")).get("steps"), "", {}, steps)
        triggers = tuple(_scalars(top.get("on")))
        return Workflow(tuple(self._calls), tuple(self._local), triggers)

    def _add_steps(self, node: Node | None, place: str, of_job: Mapping[str, str], count: int) -> int:
        """of_job: settings. count: of steps so far; returns the new one."""
        items = node.value if isinstance(node, SequenceNode) else []
        if count + len(items) > MAX_STEPS:
            raise ValueError(f"it has more than {MAX_STEPS:,} steps")
        for number, item in enumerate(items, 1):
            step = self._mapping(item)
            name = _label(_text(step.get("id")) or _text(step.get("name")))
            self._add(f"{place}step {name or number}", step, of_job)
        return count + len(items)

    def _add(self, place: str, node: Mapping[str, Node], of_job: Mapping[str, str]) -> None:
        uses = _text(node.get("uses")).strip()
        is_local = uses.startswith("./")
        if is_local:
            self._local.setdefault(uses[2:].rstrip("/"))
        if not is_local and not self._is_ours(uses):
            return
        given = self._mapping(node.get("with"))
        if len(self._calls) == MAX_CALLS or len(given) > MAX_CALLS:
            raise ValueError(f"it has more than {MAX_CALLS} calls, or inputs of one")
        inputs = {key.lower(): _text(value) for key, value in given.items()}
        self._calls.append(_Call(place, uses, inputs, {**_settings(node), **of_job}))

    def _mapping(self, node: Node | None) -> dict[str, Node]:
        if not isinstance(node, MappingNode):
            return {}
        found = self._seen.get(id(node))
        if found is None:
            found = {key.value: value for key, value in node.value if isinstance(key, ScalarNode)}
            self._seen[id(node)] = found
        return found


def _label(text: str) -> str:
    """A name within a sentence."""
    text = " ".join(text.split())
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


def _text(node: Node | None) -> str:
    return node.value if isinstance(node, ScalarNode) else ""


def _scalars(node: Node | None) -> Iterator[str]:
    """What a node says, without its form; of aliases that repeat too much, its first part."""
    waiting = [node]
    for _ in range(MAX_STEPS):
        if not waiting:
            return
        one = waiting.pop()
        if isinstance(one, ScalarNode):
            yield one.value
        elif isinstance(one, SequenceNode):
            waiting += one.value
        elif isinstance(one, MappingNode):
            waiting += chain.from_iterable(one.value)
