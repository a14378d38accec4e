"""The released AgenticAssure 0.4.0 and `keystone run` on the same suites decide the same, except where a difference is
named that docs/compatibility.md tells of."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.command_line import ROOT
from support.compatibility import SYSTEMS, differences, released_verdicts, suite_files
from support.differences import unexpected
from support.graded_tests import lay_out
from support.released import released
from support.released_agenticassure import run_ours, run_released

SUITES = ROOT / "tests" / "data" / "differential" / "agenticassure"
_NAMED = "differs "
"""A tag of a scenario that names a difference begins so."""
ELSEWHERE = {"retries-start-anew", "suites-as-documented"}
"""Differences that the suites can't show: tests of their own do."""


@pytest.fixture(scope="session")
def programs() -> Path:
    return released("agenticassure")


def test_suites(programs: Path, tmp_path: Path) -> None:
    shutil.copytree(SUITES, tmp_path, dirs_exist_ok=True)
    named = {}
    for file in sorted((SUITES / "scenarios").glob("*.yaml")):
        document = yaml.safe_load(file.read_text("utf-8"))
        for number, scenario in enumerate(document["scenarios"]):
            names = [tag.removeprefix(_NAMED) for tag in scenario.get("tags", ()) if tag.startswith(_NAMED)]
            named[f"{document.get('suite', {}).get('name', file.stem)} {number}"] = names
    theirs, code = run_released(programs, tmp_path)
    ours, called = run_ours(tmp_path)
    assert unexpected(theirs, ours, named) == ""
    assert (code, called.code) == (1, 3)
    # `fail_fast` of both: the third scenario of that suite was not started.
    assert len(named) - len(theirs) == 1
    assert {name for names in named.values() for name in names} == differences("agenticassure") - ELSEWHERE


def test_tags_and_a_configuration_in_toml(programs: Path, tmp_path: Path) -> None:
    shutil.copytree(SUITES, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.yaml"))
    (tmp_path / "agenticassure.toml").write_text('adapter = "adapter.Agent"\n')
    shutil.copy(SUITES / "scenarios" / "own-scorers.yaml", tmp_path / "scenarios")
    theirs, _ = run_released(programs, tmp_path, "--tag", "x")
    ours, _ = run_ours(tmp_path, "--tag", "x")
    assert unexpected(theirs, ours, {}) == ""
    assert len(ours) == 2


def test_suites_that_are_refused(programs: Path, tmp_path: Path) -> None:
    """What the released tool runs to the verdict that the table has. tests/test_compatibility.py has it refused."""
    expected = released_verdicts("agenticassure")
    for name in expected:
        files = suite_files(name, SYSTEMS["agenticassure"][name]["refused"])
        lay_out(tmp_path, {**files, f"scenarios/{name}.yaml": files["suite.yaml"]})
    theirs, _ = run_released(programs, tmp_path)
    assert {name.rpartition(" ")[0]: one.verdict for name, one in theirs.items()} == expected


def test_retries(programs: Path, tmp_path: Path) -> None:
    """Both try again after an exception, never after a scenario that fails. The released tool goes on with what the
    earlier attempt left; here every attempt starts from the beginning."""
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "s.yaml").write_text(
        "suite: {name: s, config: {retries: 2}}\nscenarios:\n"
        "  - {name: raises, input: flaky, tags: [x]}\n"
        "  - {name: fails, input: plain, expected_output: attempt 2}\n"
    )
    (tmp_path / "agenticassure.yaml").write_text("adapter: adapter.Agent\n")
    (tmp_path / "adapter.py").write_text(
        "from pathlib import Path\n"
        "from agenticassure.results import AgentResult\n"
        "class Agent:\n"
        "    def run(self, input, context=None):\n"
        "        seen = Path(input)\n"
        "        seen.write_text(seen.read_text() + 'x' if seen.exists() else 'x')\n"
        "        number = len(seen.read_text())\n"
        "        if input == 'flaky' and number < 3:\n"
        "            raise RuntimeError('again')\n"
        "        return AgentResult(output=f'attempt {number}')\n"
    )
    theirs, _ = run_released(programs, tmp_path)
    assert [len((tmp_path / left).read_text()) for left in ("flaky", "plain")] == [3, 1]
    ours, _ = run_ours(tmp_path)
    assert unexpected(theirs, ours, {"s 0": ["retries-start-anew"]}) == ""
    assert differences("agenticassure") >= ELSEWHERE


def test_a_file_as_the_documents_have_it(programs: Path, tmp_path: Path) -> None:
    """`suite.adapter` and `suite.scorer` are of AgenticAssure's documents; its own command refuses them."""
    shutil.copytree(SUITES, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("scenarios", "*.yaml"))
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "s.yaml").write_text(
        "suite: {name: s, adapter: adapter.Agent, scorer: exact, tags: [a]}\n"
        'scenarios: [{name: one, input: \'{"output": "Hi"}\', expected_output: hi}]\n'
    )
    assert run_released(programs, tmp_path, "--adapter", "adapter.Agent") == ({}, 1)
    ours, called = run_ours(tmp_path)
    assert [(one.verdict, one.score) for one in ours.values()] == [("pass", 1.0)]
    assert "its own command refuses it" in called.err


WORDS = st.text(st.sampled_from("aAbB ßẞ\n.é́1"), max_size=6)
TOOLS = st.sampled_from(["read", "Read", "a", "b.c"])
PLAIN = st.one_of(
    st.integers(-2, 2), st.sampled_from([0.0, 1.0, 1.5, 2.0, 1e300]), st.booleans(), st.none(), st.sampled_from("1aA")
)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("kl"), inner, max_size=2)
)
ARGUMENTS = st.dictionaries(st.sampled_from(["k", "l", "K"]), VALUES, max_size=2)
CALLS = st.lists(st.fixed_dictionaries({"name": TOOLS, "arguments": ARGUMENTS}), max_size=3)
PATTERNS = st.sampled_from(["a", "^a", "b$", "(?i)ß", r"\w\s", "a.b", "(?s)a.b", r"\bb\b", "[^a]", "(a)\\1", "(?m)^A$"])


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """One scenario of AgenticAssure: often one whose expectations were made from what is returned."""
    output, calls = draw(WORDS), draw(CALLS)
    scorers = draw(st.lists(st.sampled_from(["passfail", "exact", "regex"]), min_size=1, max_size=3, unique=True))
    found: dict[str, Any] = {"input": json.dumps({"output": output, "calls": calls}), "scorers": scorers}
    part = output[draw(st.integers(0, 2)) :][: draw(st.integers(1, 6))]
    if "exact" in scorers or draw(st.booleans()):
        found["expected_output"] = draw(st.sampled_from([part, part.upper(), output.strip(), output.swapcase()]))
    if draw(st.booleans()):
        found["expected_tools"] = draw(st.lists(TOOLS, max_size=2))
    if draw(st.booleans()):
        made = [{call["name"]: call["arguments"]} for call in calls]
        found["expected_tool_args"] = draw(st.sampled_from(made) if made else st.dictionaries(TOOLS, ARGUMENTS))
    metadata: dict[str, Any] = {"exact_normalize": draw(st.booleans())} if "exact" in scorers else {}
    if "regex" in scorers:
        metadata["regex_pattern"] = draw(PATTERNS)
    return {**found, "metadata": metadata}


def known(scenario: Mapping[str, Any]) -> list[str]:
    """The differences that a scenario shows, by what the released code does: of the arguments of a tool it looks at
    the first call alone, and compares them by Python's own equality."""
    told = json.loads(scenario["input"])
    output, called = told["output"], {call["name"] for call in told["calls"]}
    if (
        "passfail" not in scenario["scorers"]
        or not output.strip()
        or not called >= {*scenario.get("expected_tools", ())}
    ):
        return []
    if scenario.get("expected_output", "").lower() not in output.lower():
        return []
    theirs = ours = True
    for tool, wanted in scenario.get("expected_tool_args", {}).items():
        calls = [call["arguments"] for call in told["calls"] if call["name"] == tool]
        theirs &= bool(calls) and all(key in calls[0] and calls[0][key] == value for key, value in wanted.items())
        ours &= any(all(key in call and same(call[key], value) for key, value in wanted.items()) for call in calls)
    return [] if theirs == ours else ["tool-args-any-call" if ours else "booleans-are-no-numbers"]


def same(one: Any, other: Any) -> bool:
    """Equality of JSON values: numbers by value, true and false no numbers."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@settings(
    max_examples=1,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[*HealthCheck],
)
@given(batch=st.lists(scenarios(), min_size=50, max_size=50, unique_by=json.dumps))
def test_made_up_scenarios(programs: Path, tmp_path: Path, batch: list[dict[str, Any]]) -> None:
    """One run of each for all of them: starting the two takes longer than scoring."""
    place = Path(tempfile.mkdtemp(dir=tmp_path))
    named = {f"made-up {number}": known(scenario) for number, scenario in enumerate(batch)}
    listed = [{"name": f"s{number}", **scenario} for number, scenario in enumerate(batch)]
    shutil.copy(SUITES / "adapter.py", place)
    shutil.copy(SUITES / "agenticassure.yaml", place)
    (place / "scenarios").mkdir()
    suite = place / "scenarios" / "made-up.yaml"
    suite.write_text(yaml.safe_dump({"suite": {"name": "made-up"}, "scenarios": listed}))
    theirs, _ = run_released(programs, place)
    ours, _ = run_ours(place)
    assert unexpected(theirs, ours, named) == "", json.dumps(listed)
