"""AgenticAssure suites as Keystone specs (spec.md 1.9, 5.5; the fields of 0.4.0)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keystone_action.dialects.known import DIALECTS
from keystone_action.invariants.registry import CheckTypes
from keystone_action.options.model import Options
from keystone_action.runner.specs import load_specs
from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.discovery import discover
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load
from keystone_action.spec.models.agents import PythonAgent
from keystone_action.spec.plan import Selection, plan

Write = Callable[..., Path]
TYPES = CheckTypes()
WHOLE = """
suite:
  name: "Wetter & Co: Süd"
  description: What it is about
  tags: [nightly]
  config: {default_timeout: 4, retries: 2, default_scorers: [passfail, regex], fail_fast: true}
scenarios:
  - name: weather-lookup
    description: Looks up the weather
    input: "What is the weather in {{ Seattle }}?"
    expected_output: "{{ rain }}"
    expected_tools: [get_weather]
    expected_tool_args: {get_weather: {location: Seattle}}
    tags: [weather]
    metadata: {regex_pattern: '(?i)rain', own: 1}
  - name: Say hello!
    input: Say hello
    scorers: [exact, similarity]
    expected_output: Hello
    metadata: {exact_normalize: false, similarity_threshold: 0.9}
    timeout_seconds: 0.5
"""


@pytest.fixture
def suite(write: Write) -> Callable[..., LoadedSpec]:
    """Load a suite, with an adapter beside it."""

    def loader(text: str, **options: Any) -> LoadedSpec:
        write("adapter: my_agent.MyAgent\n", "agenticassure.yaml")
        write("class MyAgent:\n    pass\n", "my_agent.py")
        return load(write(text, "scenarios/suite.yaml"), TYPES, dialects=DIALECTS, **options)

    return loader


def checks(loaded: LoadedSpec, index: int = 0) -> dict[str, dict[str, Any]]:
    invariants = loaded.scenarios[index].invariants
    return {name: one.check.model_dump(exclude_unset=True) for name, one in invariants.items()}


def test_every_field_has_its_place(suite: Callable[..., LoadedSpec]) -> None:
    loaded = suite(WHOLE)
    assert (loaded.spec.id, loaded.spec.description) == ("wetter-co-sud", "What it is about")
    assert loaded.spec.tags == ["nightly"]
    assert loaded.spec.scoring.pass_threshold == 1.0
    assert [one.id for one in loaded.scenarios] == ["weather-lookup", "Say-hello"]
    assert [one.prompt for one in loaded.scenarios] == ["What is the weather in {{ Seattle }}?", "Say hello"]
    assert [one.tags for one in loaded.scenarios] == [("weather",), ()]
    assert checks(loaded) == {
        "passfail": {
            "type": "passfail",
            "expected_output": "{{ rain }}",
            "expected_tools": ["get_weather"],
            "expected_tool_args": {"get_weather": {"location": "Seattle"}},
        },
        "regex": {"type": "regex", "pattern": "(?i)rain"},
    }
    assert checks(loaded, 1) == {
        "exact": {"type": "exact", "expected": "Hello", "normalize": False},
        "similarity": {"type": "similarity", "expected": "Hello", "threshold": 0.9},
    }
    for scenario in loaded.scenarios:
        assert {(one.weight, one.gate) for one in scenario.invariants.values()} == {(1.0, False)}


def test_the_agent_is_the_adapter_with_the_scenarios_time(suite: Callable[..., LoadedSpec]) -> None:
    loaded = suite(WHOLE)
    cells = plan([loaded], Selection(params={})).cells
    agents = [cell.agent for cell in cells]
    assert all(isinstance(agent, PythonAgent) for agent in agents)
    assert [agent.timeout for agent in agents] == [4.0, 0.5]
    assert {agent.dir for agent in agents} == {".."}
    assert {getattr(agent, "entrypoint", "") for agent in agents} == {"my_agent:MyAgent"}
    assert all(agent.must_exit_zero for agent in agents)
    assert not loaded.has_expressions
    assert (loaded.agent_retries, loaded.fail_fast, loaded.every_check_decides) == (2, True, True)
    assert loaded.spec.parallelism.max_concurrency == 1


def test_the_smallest_suite_has_the_originals_defaults(suite: Callable[..., LoadedSpec]) -> None:
    """002: "The PassFail scorer is the default scorer in AgenticAssure"."""
    loaded = suite('scenarios:\n  - name: basic-response\n    input: "Summarize the company\'s return policy"\n')
    assert (loaded.spec.id, [one.id for one in loaded.scenarios]) == ("suite", ["basic-response"])
    assert checks(loaded) == {"passfail": {"type": "passfail"}}
    (cell,) = plan([loaded], Selection(params={})).cells
    assert cell.agent.timeout == 30.0
    assert not loaded.has_expressions
    assert (loaded.agent_retries, loaded.fail_fast) == (0, False)
    assert loaded.warnings == ()


def test_an_empty_input_is_one(suite: Callable[..., LoadedSpec]) -> None:
    assert suite('scenarios: [{name: a, input: ""}]').scenarios[0].prompt == ""


def test_a_long_scenario_is_not_cut_by_its_cell(suite: Callable[..., LoadedSpec]) -> None:
    loaded = suite("scenarios: [{name: a, input: b, timeout_seconds: 7200}]")
    assert loaded.spec.resources.timeout > 7200


def test_names_that_are_alike_are_numbered_with_a_warning(suite: Callable[..., LoadedSpec]) -> None:
    names = ["a b", "a-b", "a/b", "a b", "a-b-2", "Ünï", "日本"]
    items = "".join(f"  - {{name: {name!r}, input: x}}\n" for name in names)
    loaded = suite(f"scenarios:\n{items}")
    ids = [one.id for one in loaded.scenarios]
    assert ids == ["a-b", "a-b-3", "a-b-4", "a-b-5", "a-b-2", "n", "scenario-7"]
    assert [(one.line, one.sentence.partition(";")[2].strip()) for one in loaded.warnings] == [
        (3, "this one is a-b-3 in results"),
        (4, "this one is a-b-4 in results"),
        (5, "this one is a-b-5 in results"),
    ]


def test_two_suites_of_one_name_are_numbered(suite: Callable[..., LoadedSpec], write: Write, directory: Path) -> None:
    suite("suite: {name: Same}\nscenarios: [{name: a, input: b}]")
    write("suite: {name: same}\nscenarios: [{name: a, input: b}]", "scenarios/two.yaml")
    write("suite: {name: other}\nscenarios: [{name: a, input: b}]", "scenarios/three.yaml")
    loaded = load_specs(Options.of(specs=("scenarios",), directory=directory, dialects=DIALECTS))
    assert [(one.path.name, one.spec.id) for one in loaded] == [
        ("suite.yaml", "same"),
        ("three.yaml", "other"),
        ("two.yaml", "same-2"),
    ]
    (warning,) = loaded[2].warnings
    assert "this one is same-2 in results" in warning.sentence
    plan(loaded, Selection(params={}))


def test_the_documents_form_is_read_with_a_warning(suite: Callable[..., LoadedSpec]) -> None:
    """Their pages show `suite: {name, adapter, scorer}`, which their own schema refuses."""
    loaded = suite(
        "suite: {name: docs, adapter: 'my_agent.MyAgent', scorer: regex}\n"
        "scenarios: [{name: a, input: b, metadata: {regex_pattern: x}}]"
    )
    assert checks(loaded) == {"regex": {"type": "regex", "pattern": "x"}}
    assert [one.sentence.partition(",")[0] for one in loaded.warnings] == [
        "'adapter' is in AgenticAssure's documents",
        "'scorer' is in AgenticAssure's documents",
    ]


def test_what_no_scorer_looks_at_is_said(suite: Callable[..., LoadedSpec]) -> None:
    loaded = suite(
        "scenarios:\n- name: a\n  input: b\n  scorers: [regex, regex]\n  expected_tools: [x]\n"
        "  metadata: {regex_pattern: x, similarity_threshold: 0.5, mine: 1}"
    )
    assert [(one.line, one.sentence) for one in loaded.warnings] == [
        (4, "a scorer is there twice; it is used once"),
        (5, "none of the scorers regex looks at 'expected_tools'"),
        (6, "'similarity_threshold' is for the scorer similarity, which is not used here"),
    ]


def test_own_scorers_become_checks_of_their_own(suite: Callable[..., LoadedSpec]) -> None:
    loaded = suite(
        "scenarios:\n- {name: a, input: b, scorers: [passfail, 'my scorer', my-scorer], metadata: {x: 1}, tags: [t]}"
    )
    found = checks(loaded)
    assert list(found) == ["passfail", "my-scorer", "my-scorer-2"]
    assert found["my-scorer"] == {
        "type": "scorer",
        "scorer": "my scorer",
        "modules": ["my_agent"],
        "scenario": {
            "id": "a",
            "name": "a",
            "input": "b",
            "scorers": ["passfail", "my scorer", "my-scorer"],
            "timeout_seconds": 30.0,
            "metadata": {"x": 1},
            "tags": ["t"],
        },
    }
    assert not loaded.has_expressions
    assert loaded.own_scorers is not None
    assert {name: at.column for name, at in loaded.own_scorers.places.items()} == {
        "passfail": 33,
        "my scorer": 43,
        "my-scorer": 56,
    }


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"agenticassure.yaml": "adapter: my_agent.MyAgent", "my_agent.py": ""}, ("..", "my_agent:MyAgent")),
        ({"agenticassure.toml": 'adapter = "my_agent.MyAgent"', "my_agent.py": ""}, ("..", "my_agent:MyAgent")),
        (
            {"agenticassure.yaml": "adapter: pkg.deep.mod.MyAgent", "pkg/deep/mod.py": "", "pkg/__init__.py": ""},
            ("..", "pkg.deep.mod:MyAgent"),
        ),
        ({"agenticassure.yaml": "adapter: 'pkg:make'", "src/pkg/__init__.py": ""}, ("../src", "pkg:make")),
        (
            {"scenarios/agenticassure.yaml": "adapter: near.A", "agenticassure.yaml": "adapter: x.B", "near.py": ""},
            ("..", "near:A"),
        ),
        (
            {"agenticassure.yaml": "adapter: m.A", "m.py": "", "scenarios/m.py": ""},
            ("..", "m:A"),
        ),
        (
            {"agenticassure.yaml": "adapter: m.A", "agenticassure.toml": 'adapter = "n.B"', "m.py": "", "n.py": ""},
            ("..", "m:A"),
        ),
    ],
)
def test_where_adapters_are_found(write: Write, files: dict[str, str], found: tuple[str, str]) -> None:
    for name, text in files.items():
        write(text or "class MyAgent: pass\nA = make = MyAgent\n", name)
    agent = load(write("scenarios: [{name: a, input: b}]", "scenarios/suite.yaml"), TYPES, dialects=DIALECTS).spec.agent
    assert (agent.dir, getattr(agent, "entrypoint", "")) == found


@pytest.mark.parametrize("agent", ["other:Agent", "other.Agent"])
def test_the_calls_agent_comes_first(suite: Callable[..., LoadedSpec], write: Write, agent: str) -> None:
    write("class Agent: pass", "other.py")
    text = "suite: {name: a, adapter: my_agent.MyAgent}\nscenarios: [{name: a, input: b}]"
    assert getattr(suite(text, agent=agent).spec.agent, "entrypoint", "") == "other:Agent"


def test_variables_that_the_configuration_names_reach_the_adapter(write: Write) -> None:
    write("adapter: m.A\nenv: [OPENAI_API_KEY, BASE, BASE]\nscorers: [n]\n", "agenticassure.yaml")
    for name in ("m.py", "n.py", "other.py"):
        write("class A: pass\nB = A\n", name)
    path = write("scenarios: [{name: a, input: b, scorers: [own]}]", "scenarios/suite.yaml")
    for agent in (None, "other:B"):
        loaded = load(path, TYPES, dialects=DIALECTS, agent=agent)
        assert [secret.name for secret in loaded.spec.secrets] == ["OPENAI_API_KEY", "BASE"]
        (cell,) = plan([loaded], Selection(params={})).cells
        assert cell.agent.env == {"OPENAI_API_KEY": "{{ secrets.OPENAI_API_KEY }}", "BASE": "{{ secrets.BASE }}"}
        assert checks(loaded)["own"]["modules"] == ["n", "other" if agent else "m"]
        assert not loaded.has_expressions
        assert loaded.advice_on_missing_variable == f"take it off `env` in {path.parents[1] / 'agenticassure.yaml'}"


def test_suites_and_configuration_are_hidden_from_the_adapter(
    suite: Callable[..., LoadedSpec], write: Write, directory: Path
) -> None:
    other = write("scenarios: [{name: a, input: b, expected_output: secret}]", "more/other.yaml")
    third = write("suite: {name: x}\nscenarios: [{naem: a}]", "more/broken.yml")
    loaded = suite("scenarios: [{name: a, input: b}]")
    assert {loaded.path.resolve(), directory / "agenticassure.yaml", other, third} <= loaded.withheld
    assert not loaded.has_expressions
    assert {".git", "node_modules"} <= set(loaded.agent_left_out)


def test_another_configuration_is_another_spec(suite: Callable[..., LoadedSpec], write: Write) -> None:
    first = suite("scenarios: [{name: a, input: b}]")
    write("class Other: pass", "my_other.py")
    write("adapter: my_other.Other\n", "agenticassure.yaml")
    assert load(first.path, TYPES, dialects=DIALECTS).sha256 != first.sha256


def test_directories_are_searched_for_suites_by_what_is_in_them(write: Write, directory: Path) -> None:
    write("adapter: a.B", "agenticassure.yaml")
    write("services: {web: {image: x}}", "compose.yaml")
    write("on: push\njobs: {}", ".github/workflows/ci.yml")
    wanted = {
        write("scenarios:\n  - name: a\n    input: b", "x/one.yaml"),
        write('"scenarios": [{"name": a, "input": b}]', "x/two.yml"),
        write("suite: {name: a}\nscenarios:\n  - {name: a", "y/broken.yaml"),
    }
    assert set(discover(["."], directory, DIALECTS)) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scenarios: []", "1:1: no scenarios, expected at least one"),
        ("scenarios:\n", "1:11: scenarios, found nothing, expected a list"),
        ("scenarios: [a]", "1:13: a scenario, found 'a', expected a mapping"),
        ("scenarios: {name: a, input: b}", "1:12: scenarios, found a mapping, expected a list"),
        ("scenarios: [{name: a}]", "1:13: the key 'input' is missing"),
        ("{scenarios: [{name: a, inptu: b}]}", "1:14: the key 'input' is missing"),
        ("suite: {name: a}", "1:1: the key 'scenarios' is missing"),
        ("task: {prompt: a}\nid: a\nmatrix: {harnesses: [echo], models: [m]}", "1:1: the key 'graders' is missing"),
    ],
)
def test_a_broken_file_among_good_ones_is_not_passed_over(
    suite: Callable[..., LoadedSpec], write: Write, directory: Path, text: str, said: str
) -> None:
    suite("scenarios: [{name: a, input: b}]")
    write(text, "scenarios/broken.yaml")
    with pytest.raises(SpecError) as caught:
        load_specs(Options.of(specs=("scenarios",), directory=directory, dialects=DIALECTS))
    assert f"scenarios/broken.yaml:{said}" in str(caught.value)


def test_files_of_yet_others_are_passed_over(write: Write, directory: Path) -> None:
    wanted = write("scenarios: [{name: a, input: b}]", "x.yaml")
    write("config: {target: a}\nscenarios:\n  - flow: [{get: {url: /}}]", "artillery.yaml")
    write("version: 3\nscenarios: []", "versioned.yaml")
    write("task: {prompt: a}\nid: a", "task.yaml")
    write("- scenarios: []", "list.yaml")
    write("", "empty.yaml")
    assert discover(["."], directory, DIALECTS) == [wanted]


def test_tags_choose_scenarios(suite: Callable[..., LoadedSpec]) -> None:
    loaded = suite("scenarios:\n- {name: a, input: b, tags: [smoke]}\n- {name: c, input: d}")
    assert [cell.scenario.id for cell in plan([loaded], Selection(params={}, tags=("smoke",))).cells] == ["a"]
