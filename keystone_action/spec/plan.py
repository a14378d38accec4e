"""From a spec to its cells: scenario × parameter set × replica, the unit that is run, resumed and sharded.

The matrix means what GitHub's own means: `exclude` drops combinations, `include` extends or adds them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keystone_action.errors import UsageError
from keystone_action.spec.agent_service import agent_service, misuses_of
from keystone_action.spec.globs import text_pattern
from keystone_action.spec.loading.diagnostics import nearest
from keystone_action.spec.loading.loaded_spec import LoadedSpec, Scenario
from keystone_action.spec.models.agents import AgentBase
from keystone_action.spec.models.experiment import AtLeast, UntilDecided

_NAMED = 5
"""Cells that a sentence names."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: a scenario with parameters, in one repetition."""

    id: str
    """Stable over runs and machines, safe as a file name, unique within the spec's id."""
    loaded: LoadedSpec
    scenario: Scenario
    params: Mapping[str, Any]
    replica: int
    seed: int
    stopping: UntilDecided | None = None
    """When no further replica of its group starts; None where their number is fixed."""

    @property
    def group(self) -> str:
        """What it has in common with the other replicas of its scenario and parameters: the id of the first."""
        return first_replica(self.id)

    @property
    def agent_type(self) -> str:
        """Its `type`."""
        return str(getattr(self.agent, "type", ""))

    @property
    def agent(self) -> AgentBase:
        """The agent of this cell, as the spec has it: not interpolated."""
        return self.loaded.agent_for(self.scenario.id, self.params) or self.loaded.spec.agent


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCells:
    """The cells of an earlier run that did not pass, which `--failed` chooses."""

    run_id: str
    failed: tuple[str, ...]
    """Ids."""
    settled: frozenset[str]
    """Ids of those that passed, or did not have to run since their group was decided."""
    unfinished: bool
    """Whether there are results of fewer cells than that run was to have. The fields below say which cells those
    were."""
    chosen: tuple[str, ...]
    """`Selection.chosen` of that run."""
    shard: tuple[int, int]
    digest: str
    """`Plan.digest`, of all shards together."""

    def of(self, cells: Sequence[Cell]) -> list[str]:
        """The ids that are to run again. cells: all those of this call's specs, in order."""
        if not self.unfinished:
            return list(self.failed)
        tags = [word.removeprefix("tag ") for word in self.chosen if word.startswith("tag ")]
        filters = [word.removeprefix("filter ") for word in self.chosen if word.startswith("filter ")]
        earlier = Selection(params={}, tags=tuple(tags), filter=filters[0] if filters else None)
        chosen = [cell for cell in cells if _is_chosen(cell, earlier)]
        ids = [cell.id for cell in chosen]
        if cells_digest(ids) == self.digest:
            ids = [cell.id for cell in chosen if shard_of_cell(cell, self.shard[1]) == self.shard[0]]
        return [*self.failed, *(name for name in ids if name not in self.settled and name not in self.failed)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The part of the specs that is wanted."""

    params: Mapping[str, str]
    tags: tuple[str, ...] = ()
    filter: str | None = None
    """A glob on spec, scenario or cell ids."""
    shard: tuple[int, int] | None = None
    """(Index from 1, count)."""
    replicas: int | None = None
    failed: FailedCells | None = None
    """Only cells that did not pass in an earlier run."""

    @property
    def chosen(self) -> tuple[str, ...]:
        """What leaves cells out, beside the shard: equal words for equal choices, in any order.
        Empty when nothing does."""
        found = [f"tag {tag}" for tag in sorted(set(self.tags))]
        found += [f"filter {self.filter}"] if self.filter else []
        found += [f"failed {self.failed.run_id}"] if self.failed else []
        return (*found, *(f"param {name}={value}" for name, value in sorted(self.params.items())))


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells of this run."""

    cells: tuple[Cell, ...]
    positions: tuple[int, ...]
    """Where each of them is among the cells of all shards together, from 0."""
    total: int
    """How many cells all shards have together."""
    digest: str
    """Of the ids of those."""
    specs: Mapping[str, str]
    """Id → sha256 of each spec that has some of the cells."""
    notices: tuple[str, ...] = ()
    """What people should know of the choice."""


def plan(specs: Sequence[LoadedSpec], selection: Selection) -> Plan:
    """All cells that the selection leaves, in declared order.

    Raises UsageError: two specs with one id, a parameter that nothing uses, a filter or tag that matches nothing,
    replicas below the number that `at_least` asks for, a service that can't be the agent that a parameter makes it.
    """
    _unique_ids(specs)
    _used_params(specs, selection.params)
    everything = [cell for loaded in specs for cell in _cells(loaded, selection)]
    cells = [cell for cell in everything if _is_chosen(cell, selection)]
    if not cells:
        raise UsageError("nothing to run: no cell is left", help=_nothing_left(everything, selection))
    notices: list[str] = []
    if selection.failed is not None:
        cells, notices = _failed_of(cells, everything, selection.failed)
    _require_agents(cells)
    index, shards = selection.shard or (1, 1)
    positions = tuple(place for place, cell in enumerate(cells) if shard_of_cell(cell, shards) == index)
    return Plan(
        cells=tuple(cells[place] for place in positions),
        positions=positions,
        total=len(cells),
        digest=cells_digest(cell.id for cell in cells),
        specs={cell.loaded.spec.id: cell.loaded.sha256 for cell in cells},
        notices=tuple(notices),
    )


def _failed_of(cells: Sequence[Cell], everything: Sequence[Cell], failed: FailedCells) -> tuple[list[Cell], list[str]]:
    """Those of the cells that did not pass in the earlier run, and the sentences on what is left out."""
    known = {cell.id for cell in everything}
    wanted = failed.of(everything)
    gone = [name for name in wanted if name not in known]
    chosen = set(wanted)
    found = [cell for cell in cells if cell.id in chosen]
    missing = f"{', '.join(gone[:_NAMED])}{f' and {len(gone) - _NAMED} more' if len(gone) > _NAMED else ''}"
    lacking = f"the specs of this call do not have {missing}{_advice(gone, known, failed)}"
    if not found:
        raise UsageError(
            f"nothing to run: no cell that did not pass in the run {failed.run_id} is left",
            help=lacking if gone else "--filter, --tag and --param choose among these cells, too",
        )
    part = f"{len(found):,} of {len(cells):,} cells, those that did not pass in the run {failed.run_id}"
    return found, [f"a part of the run: {part}", *([f"not run again: {lacking}"] if gone else [])]


def _advice(gone: Sequence[str], known: Collection[str], failed: FailedCells) -> str:
    """Which options of the earlier run made cells that this call lacks."""
    params = [f"--{word}" for word in failed.chosen if word.startswith("param ")]
    if params:
        return f"; that run had {' '.join(params)}"
    more = any(first_replica(name) in known for name in gone)
    return "; that run had more replicas: give --replicas as it did" if more else ""


def cells_digest(cell_ids: Iterable[str]) -> str:
    """SHA-256 in hexadecimal of ids, one a line: equal for equal cells in equal order."""
    return hashlib.sha256("".join(f"{cell_id}\n" for cell_id in cell_ids).encode("utf-8", "surrogatepass")).hexdigest()


def shard_of_cell(cell: Cell, shards: int) -> int:
    """Which of so many shards, from 1, has this cell. Replicas that stop when their group is decided are together: no
    shard knows what another found."""
    return shard_of(cell.id if cell.stopping is None else cell.group, shards)


def shard_of(cell_id: str, shards: int) -> int:
    """Which of so many shards, from 1, has the cell with this id. By a hash: in whatever order the cells come, no shard
    has all of one model, and one cell more moves no other."""
    return int(_digest(cell_id), 16) % shards + 1


def _cells(loaded: LoadedSpec, selection: Selection) -> list[Cell]:
    spec = loaded.spec
    asked = spec.parallelism.replicas if selection.replicas is None else selection.replicas
    stopping = None if isinstance(asked, int) else asked
    replicas = asked if isinstance(asked, int) else asked.max
    at_least = _at_least(loaded)
    if at_least > replicas:
        raise UsageError(
            f"{loaded.path}: replica_aggregation asks for at least {at_least} passes, but there are {replicas} replicas"
        )
    matrix = [_choose(combination, selection.params) for combination in matrix_combinations(loaded, selection.params)]
    cells = []
    for scenario in loaded.scenarios:
        for combination in matrix:
            params = {**scenario.params, **combination}
            for replica in range(replicas):
                cell_id = make_cell_id(spec.id, scenario.id, params if combination else {}, replica)
                seed = spec.determinism.seed if spec.determinism and spec.determinism.seed is not None else None
                cells.append(Cell(cell_id, loaded, scenario, params, replica, _seed(cell_id, seed), stopping))
    return cells


def _require_agents(cells: Sequence[Cell]) -> None:
    """Raises UsageError for a service that is the agent of a cell, as its parameters say, and that can't be."""
    seen: set[tuple[str, str]] = set()
    for cell in cells:
        spec = cell.loaded.spec
        name = agent_service(spec, cell.agent, cell.params)
        if name is None or (spec.id, name) in seen:
            continue
        seen.add((spec.id, name))
        for problem in misuses_of(spec, name):
            place = ".".join(str(step) for step in problem.path)
            raise UsageError(f"{cell.loaded.path}: {place}: {problem.message} in the cell {cell.id}", help=problem.help)


def _is_chosen(cell: Cell, selection: Selection) -> bool:
    """Whether tags and filter leave it in."""
    spec = cell.loaded.spec
    if selection.tags and not set(selection.tags) & {*spec.tags, *cell.scenario.tags}:
        return False
    return _matches(selection.filter, spec.id, cell.scenario.id, cell.id)


def _choose(combination: Mapping[str, Any], params: Mapping[str, str]) -> dict[str, Any]:
    extra = {name: value for name, value in params.items() if name not in combination}
    return {**combination, **extra}


def matrix_combinations(loaded: LoadedSpec, params: Mapping[str, str]) -> list[dict[str, Any]]:
    """The parameter sets of a spec; one empty set when there is no matrix.

    A `--param` on a name of the matrix keeps that one value, and it is an error when the matrix doesn't have it.
    """
    parallelism = loaded.spec.parallelism
    names = list(parallelism.matrix)
    combinations = [dict(zip(names, values, strict=True)) for values in itertools.product(*parallelism.matrix.values())]
    if not names:
        combinations = []
    combinations = [c for c in combinations if not any(_covers(c, gone) for gone in parallelism.exclude)]
    combinations = _with_includes(combinations, names, parallelism.include)
    if not combinations and not names:
        combinations = [{}]
    for name, value in params.items():
        if any(name in c for c in combinations):
            combinations = _narrow(loaded, combinations, name, value)
    return combinations


def _with_includes(
    combinations: list[dict[str, Any]], names: Sequence[str], includes: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """GitHub's rule: an include extends every combination whose original values it does not overwrite; where there is
    none, it is a combination of its own."""
    originals = [dict(combination) for combination in combinations]
    extended = [dict(combination) for combination in combinations]
    added: list[dict[str, Any]] = []
    for include in includes:
        fits = [
            index
            for index, original in enumerate(originals)
            if all(_same(original[name], include[name]) for name in names if name in include)
        ]
        for index in fits:
            extended[index].update(include)
        if not fits:
            added.append(dict(include))
    return extended + added


def _covers(combination: Mapping[str, Any], pattern: Mapping[str, Any]) -> bool:
    return all(name in combination and _same(combination[name], value) for name, value in pattern.items())


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def _narrow(loaded: LoadedSpec, combinations: list[dict[str, Any]], name: str, value: str) -> list[dict[str, Any]]:
    kept = [c for c in combinations if name in c and _text(c[name]) == value]
    if not kept:
        known = sorted({_text(c[name]) for c in combinations if name in c})
        raise UsageError(f"--param {name}={value}: {loaded.path} has no such value; it has {', '.join(known)}")
    return kept


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _unique_ids(specs: Sequence[LoadedSpec]) -> None:
    seen: dict[str, LoadedSpec] = {}
    for loaded in specs:
        other = seen.setdefault(loaded.spec.id, loaded)
        if other is not loaded:
            raise UsageError(
                f"two specs have the id {loaded.spec.id!r}: {other.path} and {loaded.path}",
                help="results are joined on the id: give each spec its own",
            )


def _used_params(specs: Sequence[LoadedSpec], params: Mapping[str, str]) -> None:
    for name in params:
        if not any(name in loaded.parameter_names for loaded in specs):
            known = sorted({n for loaded in specs for n in loaded.parameter_names})
            listed = f"; used are {', '.join(known)}" if known else "; no parameter is used at all"
            near = nearest(name, known)
            meant = f"; did you mean {near}?" if near else ""
            raise UsageError(f"--param {name}: no spec uses a parameter of that name{listed}{meant}")


def _at_least(loaded: LoadedSpec) -> int:
    rule = loaded.spec.scoring.replica_aggregation
    return rule.at_least if isinstance(rule, AtLeast) else 0


def _matches(pattern: str | None, *ids: str) -> bool:
    return pattern is None or any(text_pattern(pattern).match(name) for name in ids)


def _nothing_left(everything: Sequence[Cell], selection: Selection) -> str:
    wanted = [f"--tag {tag}" for tag in selection.tags]
    wanted += ["--filter " + (selection.filter or "''")] if selection.filter is not None else []
    if not wanted:
        return "the matrix excludes every combination"
    words = [tag for cell in everything for tag in (*cell.loaded.spec.tags, *cell.scenario.tags)]
    near = [nearest(tag, words) for tag in selection.tags]
    names = {name: None for cell in everything for name in (cell.loaded.spec.id, cell.scenario.id, cell.id)}
    near += [nearest(selection.filter, names)] if selection.filter else []
    meant = " or ".join(f"`{word}`" for word in near if word)
    return f"nothing matches {' '.join(wanted)}" + (f"; did you mean {meant}?" if meant else "")


def make_cell_id(spec_id: str, scenario_id: str, params: Mapping[str, Any], replica: int) -> str:
    """`spec[.scenario][.params].rN`: readable, at most about 200 characters, and free of separators of paths."""
    parts = [spec_id]
    if scenario_id != spec_id:
        parts.append(_slug(scenario_id, 60))
    if params:
        text = "-".join(f"{name}-{_text(value)}" for name, value in sorted(params.items()))
        canonical = json.dumps(dict(params), sort_keys=True, default=str)
        parts.append(f"{_plain(text)[:60]}-{_digest(canonical)}")
    return ".".join([*parts, f"r{replica}"])


def first_replica(cell_id: str) -> str:
    """The id of the first replica of a cell's scenario and parameters."""
    return f"{cell_id.rpartition('.r')[0]}.r0"


def _slug(text: str, limit: int) -> str:
    plain = _plain(text)
    return plain if plain == text and len(text) <= limit else f"{plain[:limit]}-{_digest(text)}"


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-") or "x"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _seed(cell_id: str, declared: int | None) -> int:
    return declared if declared is not None else int(_digest(cell_id), 16) & 0x7FFF_FFFF
