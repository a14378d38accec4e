"""What is wrong with AgenticAssure suites and their configuration: exit 2, at its place, all of it at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.check_types import CHECKS, HEAD

from keystone_action.dialects.known import DIALECTS
from keystone_action.errors import UsageError
from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.loader import load

Write = Callable[..., Path]
TYPES = CheckTypes()
SUITE = "scenarios: [{name: a, input: b}]"


@pytest.fixture
def problems(write: Write, directory: Path) -> Callable[..., list[str]]:
    """The errors of a suite with an adapter beside it, as `line:column: sentence`."""

    def found(text: str, agent: str | None = None, config: str = "adapter: my_agent.MyAgent\n") -> list[str]:
        write(config, "agenticassure.yaml")
        write("class MyAgent: pass\n", "my_agent.py")
        with pytest.raises(SpecError) as caught:
            load(write(text, "suite.yaml"), TYPES, dialects=DIALECTS, agent=agent)
        here = str(directory)
        return [
            f"{Path(one.path).name}:{one.line}:{one.column}: {one.sentence}".replace(here, "<here>")
            for one in caught.value.diagnostics
        ]

    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "suites: {name: a}\n" + SUITE,
            "1:1: unknown key 'suites', expected one of scenarios, suite, did you mean 'suite'",
        ),
        ("suite: {}\n" + SUITE, "1:1: the key 'name' is missing"),
        (
            "suite: {name: 3}\n" + SUITE,
            "1:15: name, found the number 3, expected a text that is not blank; put it into",
        ),
        ("suite: [a]\n" + SUITE, "1:8: suite, found a list, expected a mapping"),
        ("suite: {name: a, tags: [1]}\n" + SUITE, "1:25: tags[0], found the number 1, expected a text"),
        (
            "suite: {name: a, config: {retrys: 1}}\n" + SUITE,
            "1:27: unknown key 'retrys', expected one of default_scorers",
        ),
        ("suite: {name: a, config: {retries: -1}}\n" + SUITE, "1:36: retries, found the number -1, expected a whole"),
        ("suite: {name: a, config: {retries: 1.5}}\n" + SUITE, "1:36: retries, found the number 1.5, expected a whole"),
        ("suite: {name: a, config: {retries: true}}\n" + SUITE, "1:36: retries, found true, expected a whole number"),
        ("suite: {name: a, config: {default_timeout: 0}}\n" + SUITE, "1:44: default_timeout, found the number 0"),
        (
            "suite: {name: a, config: {default_timeout: 9s}}\n" + SUITE,
            "1:44: default_timeout, found '9s', expected a num",
        ),
        (
            "suite: {name: a, config: {fail_fast: yes}}\n" + SUITE,
            "1:38: fail_fast, found 'yes', expected true or false",
        ),
        ("suite: {name: a, config: {default_scorers: []}}\n" + SUITE, "1:44: no scorers, expected at least one"),
        ("suite: {name: a}\nscenarios: []", "2:1: no scenarios, expected at least one"),
        ("suite: {name: a}\nscenarios: {}", "2:12: scenarios, found a mapping, expected a list"),
        ("scenarios:\n- {name: a, input: b}\n- c", "3:3: a scenario, found 'c', expected a mapping"),
        ("scenarios:\n- {name: a, input: b}\n- {name: c}", "3:3: the key 'input' is missing"),
        ("scenarios:\n- {name: a, input: 5}", "2:20: input, found the number 5, expected a text; put it into quotes"),
        ("scenarios: [{name: '  ', input: b}]", "1:20: name, found '  ', expected a text that is not blank"),
        ("scenarios: [{name: a, input: b, expected_tool: [x]}]", "1:33: unknown key 'expected_tool', expected one of"),
        (
            "scenarios: [{name: a, input: b, expected_output: }]",
            "1:50: expected_output, found nothing, expected a text",
        ),
        ("scenarios: [{name: a, input: b, expected_tools: x}]", "1:49: expected_tools, found 'x', expected a list"),
        ("scenarios: [{name: a, input: b, expected_tools: [x, '']}]", "1:53: expected_tools[1], found ''"),
        (
            "scenarios: [{name: a, input: b, expected_tool_args: {t: 5}}]",
            "1:57: the arguments of 't', found the number 5, expected a mapping of the tool's arguments",
        ),
        ("scenarios: [{name: a, input: b, expected_tool_args: [t]}]", "1:53: expected_tool_args, found a list"),
        ("scenarios: [{name: a, input: b, timeout_seconds: -1}]", "1:50: timeout_seconds, found the number -1"),
        ("scenarios: [{name: a, input: b, timeout_seconds: .nan}]", "1:50: timeout_seconds, found the number nan"),
        ("scenarios: [{name: a, input: b, metadata: x}]", "1:43: metadata, found 'x', expected a mapping"),
        ("scenarios: [{name: a, input: b, tags: x}]", "1:39: tags, found 'x', expected a list of texts"),
        ("scenarios: [{name: a, input: b, scorers: []}]", "1:42: no scorers, expected at least one"),
        ("scenarios: [{name: a, input: b, scorers: regex}]", "1:42: scorers, found 'regex', expected a list of texts"),
        (
            "scenarios: [{name: a, input: b, scorers: [exact]}]",
            "1:13: the scorer exact needs 'expected_output', which the scenario 'a' has not",
        ),
        (
            "scenarios: [{name: a, input: b, scorers: [similarity]}]",
            "1:13: the scorer similarity needs 'expected_output', which the scenario 'a' has not",
        ),
        (
            "scenarios: [{name: a, input: b, scorers: [similarity], expected_output: ' '}]",
            "1:73: expected_output, found ' ', expected a text that is not blank",
        ),
        (
            "scenarios: [{name: a, input: b, scorers: [regex]}]",
            "1:13: the scorer regex needs 'metadata.regex_pattern', which the scenario 'a' has not",
        ),
        (
            "scenarios: [{name: a, input: b, scorers: [regex], metadata: {regex_patern: x}}]",
            "1:62: the scorer regex needs 'metadata.regex_pattern', which the scenario 'a' has not; it has",
        ),
        (
            "scenarios: [{name: a, input: b, scorers: [regex], metadata: {regex_pattern: '('}}]",
            "1:77: '(' is not a regular expression: missing ) at position 1",
        ),
        (
            "scenarios: [{name: a, input: b, scorers: [regex], metadata: {regex_pattern: 12}}]",
            "1:77: regex_pattern, found the number 12, expected a text that is not empty; put it into quotes",
        ),
        (
            "scenarios: [{name: a, input: b, expected_output: x, scorers: [exact], metadata: {exact_normalize: 'no'}}]",
            "1:99: exact_normalize, found 'no', expected true or false",
        ),
        (
            "scenarios: [{name: a, input: b, expected_output: x, scorers: [similarity], metadata: *b}]".replace(
                "*b", "{\nsimilarity_threshold: 2}"
            ),
            "2:23: similarity_threshold, found the number 2, expected a number from 0 to 1",
        ),
        ("scenarios: [{name: a, input: b, input: c}]", "1:33: the key 'input' is there twice; the first is on line 1"),
        (
            "scenarios: [{name: a, input: b}]\nscenarios: [{name: c, input: d}, {}]",
            "2:1: the key 'scenarios' is there twice",
        ),
        ("scenarios: [{name: a, input: b}]\nscenarios: 7", "2:1: the key 'scenarios' is there twice"),
        ("suite: {name: x}\nsuite: [y]\nscenarios: [{name: a, input: b}]", "2:1: the key 'suite' is there twice"),
        ("extends: base.yaml\n" + SUITE, "1:10: there is no file 'base.yaml'"),
    ],
)
def test_what_is_wrong_with_a_suite(problems: Callable[..., list[str]], text: str, expected: str) -> None:
    (found,) = problems(text)
    assert found.startswith(f"suite.yaml:{expected}")


def test_one_malformed_scenario_refuses_the_file_and_all_is_told_at_once(problems: Callable[..., list[str]]) -> None:
    """5.5: "One malformed scenario, grader or scorer, or an unknown name, refuses the file (exit 2)"."""
    text = """suite: {name: a, confg: {}}
scenarios:
  - {name: good, input: x}
  - {name: bad, inptu: x}
  - {name: worse, input: x, scorers: [regex]}
"""
    found = problems(text, config="adaptor: x")
    assert [re.sub(r"([^,;]*).*", r"\1", one) for one in found] == [
        "agenticassure.yaml:1:1: the key 'adapter' is missing",
        "suite.yaml:1:18: unknown key 'confg'",
        "suite.yaml:4:5: the key 'input' is missing",
        "suite.yaml:4:17: unknown key 'inptu'",
        "suite.yaml:5:5: the scorer regex needs 'metadata.regex_pattern'",
    ]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("adaptor: my_agent.MyAgent", "agenticassure.yaml:1:1: the key 'adapter' is missing; is it 'adaptor'?"),
        ("adapter: 3", "agenticassure.yaml:1:10: adapter, found the number 3, expected a text that is not blank"),
        ("- adapter", "agenticassure.yaml:1:1: the configuration, expected a mapping with `adapter`"),
        ("", "agenticassure.yaml:1:1: the configuration, expected a mapping with `adapter`"),
        ("adapter: [", "agenticassure.yaml:1:1: not readable as YAML"),
        ("adapter: my_agent.MyAgent\nscorers: x", "agenticassure.yaml:2:10: scorers, found 'x', expected a list"),
        ("adapter: my_agent.MyAgent\nenv: [A-B]", "agenticassure.yaml:1:1: env: 'A-B' is not a name of a variable"),
        ("adapter: my_agent", "suite.yaml:1:1: agenticassure.yaml: 'my_agent' names no adapter; write module.Class or"),
        ("adapter: my_agent.My-Agent", "suite.yaml:1:1: agenticassure.yaml: 'my_agent.My-Agent' names no adapter"),
        ("adapter: ../my_agent.A", "suite.yaml:1:1: agenticassure.yaml: '../my_agent.A' names no adapter"),
        (
            "adapter: my_agent.MyAgnet",
            "suite.yaml:1:1: agenticassure.yaml: there is no 'MyAgnet' in <here>/my_agent.py; did you mean 'MyAgent'?",
        ),
        (
            "adapter: lost.A",
            "suite.yaml:1:1: agenticassure.yaml: there is no module lost (looked for lost.py and lost/ in",
        ),
        (
            "adapter: my_agent.MyAgent\nscorers: [lost]",
            "suite.yaml:1:1: agenticassure.yaml: there is no module lost of scorers in <here>",
        ),
    ],
)
def test_what_is_wrong_with_the_configuration(problems: Callable[..., list[str]], config: str, expected: str) -> None:
    (found,) = problems(SUITE, config=config)
    assert found.replace("<here>/agenticassure.yaml: ", "agenticassure.yaml: ").startswith(expected)


def test_toml_that_is_none(write: Write) -> None:
    write("adapter = ", "agenticassure.toml")
    with pytest.raises(SpecError, match=r"agenticassure.toml:1:1: not readable as TOML"):
        load(write(SUITE, "suite.yaml"), TYPES, dialects=DIALECTS)


@pytest.mark.parametrize(("text", "said"), [("adaptor = 'a.B'", "is it 'adaptor'"), ("adapter = 3", "expected a text")])
def test_toml_without_an_adapter(write: Write, text: str, said: str) -> None:
    write(text, "agenticassure.toml")
    with pytest.raises(SpecError, match=said):
        load(write(SUITE, "suite.yaml"), TYPES, dialects=DIALECTS)


def test_a_configuration_that_is_a_link_out_of_the_repository(write: Write, directory: Path) -> None:
    outside = directory.parent / f"{directory.name}-outside.yaml"
    outside.write_text("adapter: my_agent.MyAgent")
    (directory / "agenticassure.yaml").symlink_to(outside)
    with pytest.raises(SpecError, match="nothing outside it is read"):
        load(write(SUITE, "suite.yaml"), TYPES, dialects=DIALECTS)


def test_without_an_adapter_there_are_ways_out(write: Write) -> None:
    """The original lists the scenarios and ends with 0."""
    with pytest.raises(SpecError) as caught:
        load(write("suite: {name: a}\n" + SUITE, "suite.yaml"), TYPES, dialects=DIALECTS)
    (problem,) = caught.value.diagnostics
    assert (problem.line, caught.value.exit_code) == (2, 2)
    assert "nothing says which agent this suite is for" in problem.sentence
    assert "agenticassure.yaml" in problem.sentence
    assert "--agent module:Class" in problem.sentence


@pytest.mark.parametrize("agent", ["x", "a b:C", "a:", ":B", "a/b.py:B", ""])
def test_a_call_that_names_no_adapter(problems: Callable[..., list[str]], agent: str) -> None:
    (found,) = problems(SUITE, agent=agent)
    assert f"--agent: '{agent}' names no adapter; write module.Class or module:Class" in found


@pytest.mark.parametrize(
    "text",
    [
        HEAD + CHECKS,
        "graders: []",
    ],
)
def test_other_specs_take_no_agent_of_the_call(write: Write, text: str) -> None:
    with pytest.raises(UsageError, match=r"--agent is for AgenticAssure suites; .* names its"):
        load(write(text), TYPES, dialects=DIALECTS, agent="a:B")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["name", "input", "scorers", "metadata", "tags", "x"]), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_no_content_breaks_the_reading(value: object) -> None:
    import json
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "suite.yaml"
        (Path(folder) / "m.py").touch()
        path.write_text(json.dumps({"suite": {"name": "s", "adapter": "m.A"}, "scenarios": value}), "utf-8")
        try:
            loaded = load(path, TYPES, dialects=DIALECTS)
        except SpecError as error:
            assert all(one.line >= 1 for one in error.diagnostics)  # noqa: PT017
        else:
            assert loaded.scenarios
