"""From specs to cells: matrix, replicas, ids, selection, shards."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.errors import UsageError
from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.loading.loader import load
from keystone_action.spec.plan import Selection, cells_digest, make_cell_id, matrix_combinations, plan, shard_of

HEAD = """\
version: 1
id: {id}
task: {{prompt: "do it"}}
agent: {{type: command, command: ["true"]}}
invariants:
  it: {{check: {{type: file_absent, path: x}}}}
"""


@pytest.fixture
def loaded(tmp_path):
    def make(more: str = "", *, spec_id: str = "small"):
        path = tmp_path / f"{spec_id}.keystone.yaml"
        path.write_text(HEAD.format(id=spec_id) + more)
        return load(path, CheckTypes(), given_parameters=("extra",))

    return make


def ids(specs, **selection):
    chosen = Selection(params=selection.pop("params", {}), **selection)
    return [cell.id for cell in plan(specs, chosen).cells]


def test_one_spec_is_one_cell(loaded):
    assert ids([loaded()]) == ["small.r0"]


def test_replicas_times_matrix_times_scenarios(loaded):
    spec = loaded(
        "parallelism: {replicas: 2, matrix: {m: [a, b]}}\nscenarios: [{id: one, prompt: p}, {id: two, prompt: q}]\n"
    )
    found = ids([spec])
    assert len(found) == 8
    assert len(set(found)) == 8
    assert all(re.fullmatch(r"small\.(one|two)\.m-[ab]-[0-9a-f]{8}\.r[01]", one) for one in found)


class TestMatrixIsGithubs:
    """docs.github.com, "Running variations of jobs in a workflow": its own example of `include`."""

    def test_include_of_the_documentation(self, loaded):
        spec = loaded(
            """\
parallelism:
  matrix: {fruit: [apple, pear], animal: [cat, dog]}
  include:
    - {color: green}
    - {color: pink, animal: cat}
    - {fruit: apple, shape: circle}
    - {fruit: banana}
    - {fruit: banana, animal: cat}
"""
        )
        assert matrix_combinations(spec, {}) == [
            {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
            {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
            {"fruit": "pear", "animal": "cat", "color": "pink"},
            {"fruit": "pear", "animal": "dog", "color": "green"},
            {"fruit": "banana"},
            {"fruit": "banana", "animal": "cat"},
        ]

    def test_exclude_by_part(self, loaded):
        spec = loaded("parallelism: {matrix: {a: [1, 2], b: [1, 2]}, exclude: [{a: 1, b: 2}, {b: 1}]}\n")
        assert matrix_combinations(spec, {}) == [{"a": 2, "b": 2}]

    def test_a_matrix_of_includes_only(self, loaded):
        spec = loaded("parallelism: {include: [{m: a}, {m: b}]}\n")
        assert matrix_combinations(spec, {}) == [{"m": "a"}, {"m": "b"}]

    def test_excluding_everything_is_nothing_to_run(self, loaded):
        spec = loaded("parallelism: {matrix: {a: [1]}, exclude: [{a: 1}]}\n")
        with pytest.raises(UsageError, match="nothing to run"):
            ids([spec])

    def test_true_is_not_one(self, loaded):
        spec = loaded("parallelism: {matrix: {a: [1, true]}, exclude: [{a: true}]}\n")
        assert matrix_combinations(spec, {}) == [{"a": 1}]


class TestParam:
    def test_on_a_matrix_name_keeps_that_one_value(self, loaded):
        spec = loaded("parallelism: {matrix: {m: [a, b], n: [1, 2]}}\n")
        cells = plan([spec], Selection(params={"n": "2"})).cells
        assert [dict(cell.params) for cell in cells] == [{"m": "a", "n": 2}, {"m": "b", "n": 2}]

    def test_a_value_that_the_matrix_lacks(self, loaded):
        spec = loaded("parallelism: {matrix: {m: [a, b]}}\n")
        with pytest.raises(UsageError, match="it has a, b"):
            ids([spec], params={"m": "c"})

    def test_nothing_uses_it(self, loaded):
        with pytest.raises(UsageError, match="no spec uses a parameter of that name"):
            ids([loaded()], params={"extra": "1"})

    def test_used_by_an_expression_only(self, loaded):
        spec = loaded("description: d\nsetup: {env: {A: '{{ params.extra }}'}}\n")
        (cell,) = plan([spec], Selection(params={"extra": "1"})).cells
        assert cell.params == {"extra": "1"}


def test_ids_are_stable_when_the_order_of_the_matrix_changes(loaded):
    one = loaded("parallelism: {matrix: {m: [a, b], n: [1]}}\n")
    other = loaded("parallelism: {matrix: {n: [1], m: [b, a]}}\n")
    assert set(ids([one])) == set(ids([other]))


def test_two_specs_with_one_id(loaded, tmp_path):
    first = loaded()
    (tmp_path / "other.keystone.yaml").write_text(HEAD.format(id="small"))
    second = load(tmp_path / "other.keystone.yaml", CheckTypes())
    with pytest.raises(UsageError, match="two specs have the id 'small'"):
        ids([first, second])


def test_filter_matches_spec_scenario_or_cell(loaded):
    specs = [loaded("scenarios: [{id: one, prompt: p}, {id: two, prompt: q}]\n"), loaded(spec_id="other")]
    assert ids(specs, filter="one") == ["small.one.r0"]
    assert ids(specs, filter="other") == ["other.r0"]
    assert ids(specs, filter="*.two.r0") == ["small.two.r0"]


def test_an_empty_filter_matches_nothing_and_is_named(loaded):
    with pytest.raises(UsageError) as caught:
        ids([loaded()], filter="")
    assert caught.value.help == "nothing matches --filter ''"


def test_tags_of_spec_or_scenario(loaded):
    spec = loaded("tags: [slow]\nscenarios: [{id: one, prompt: p, tags: [x]}, {id: two, prompt: q}]\n")
    assert ids([spec], tags=("slow",)) == ["small.one.r0", "small.two.r0"]
    assert ids([spec], tags=("x",)) == ["small.one.r0"]
    with pytest.raises(UsageError, match="nothing to run") as caught:
        ids([spec], tags=("y",))
    assert "--tag y" in caught.value.help


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_shards_are_a_partition(loaded, shards):
    spec = loaded("parallelism: {replicas: 5}\n")
    parts = [ids([spec], shard=(index, shards)) for index in range(1, shards + 1)]
    assert sorted(one for part in parts for one in part) == sorted(ids([spec]))


def test_every_shard_knows_the_whole_plan(loaded):
    specs = [loaded("parallelism: {replicas: 5}\n"), loaded(spec_id="other")]
    whole = plan(specs, Selection(params={}))
    assert whole.digest == cells_digest(cell.id for cell in whole.cells)
    assert whole.specs == {spec.spec.id: spec.sha256 for spec in specs}
    for index in range(1, 10):
        shard = plan(specs, Selection(params={}, shard=(index, 9)))
        assert (shard.total, shard.digest, shard.specs) == (6, whole.digest, whole.specs)
    assert plan(specs, Selection(params={}, replicas=2)).digest != whole.digest


def test_a_shard_says_where_its_cells_are(loaded):
    spec = loaded("parallelism: {replicas: 9}\n")
    whole = ids([spec])
    for index in (1, 2):
        shard = plan([spec], Selection(params={}, shard=(index, 2)))
        assert [whole[place] for place in shard.positions] == [cell.id for cell in shard.cells]


def test_no_shard_has_all_of_one_model_whatever_their_order(loaded):
    """Each second cell would be of one model."""
    scenarios = ", ".join(f"{{id: s{number}, prompt: p}}" for number in range(8))
    spec = loaded(f"parallelism: {{matrix: {{model: [large, small]}}}}\nscenarios: [{scenarios}]\n")
    for shard in (1, 2):
        models = {one.params["model"] for one in plan([spec], Selection(params={}, shard=(shard, 2))).cells}
        assert models == {"large", "small"}


def test_a_cell_that_is_added_moves_no_other_to_another_shard(loaded):
    few, more = (loaded(f"parallelism: {{replicas: {count}}}\n") for count in (5, 8))
    for index in (1, 2, 3):
        parts = [ids([spec], shard=(index, 3)) for spec in (few, more)]
        assert [name for name in parts[1] if name in ids([few])] == parts[0]


def test_a_shard_without_cells_is_no_error(loaded):
    (index,) = {1, 2} - {shard_of("small.r0", 2)}
    planned = plan([loaded()], Selection(params={}, shard=(index, 2)))
    assert (planned.cells, planned.positions, planned.total) == ((), (), 1)


def test_at_least_more_than_the_replicas_of_the_call(loaded):
    spec = loaded("parallelism: {replicas: 3}\nscoring: {replica_aggregation: {at_least: 3}}\n")
    with pytest.raises(UsageError, match="at least 3"):
        ids([spec], replicas=2)


def test_seed(loaded):
    declared = plan([loaded("determinism: {seed: 7}\nparallelism: {replicas: 2}\n")], Selection(params={})).cells
    assert [cell.seed for cell in declared] == [7, 7]
    own = plan([loaded("parallelism: {replicas: 2}\n")], Selection(params={})).cells
    assert own[0].seed != own[1].seed


names = st.text(min_size=1, max_size=80)


@given(names, st.dictionaries(names, st.one_of(st.text(max_size=300), st.integers(), st.booleans(), st.none())))
def test_any_scenario_and_parameters_give_a_file_name(scenario, params):
    made = make_cell_id("spec", scenario, params, 3)
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", made)
    assert len(made.encode()) < 255


@given(names, names)
def test_different_scenarios_have_different_ids(one, other):
    same = make_cell_id("spec", one, {}, 0) == make_cell_id("spec", other, {}, 0)
    assert same == (one == other)
