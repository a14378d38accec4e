"""What stands in for the package agenticassure in a sandbox that has none: imported from its archive, in a process that
has neither pydantic nor anything of ours."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from keystone_action.dialects.known import DIALECTS

NAME = "libraries.zip"


def run(directory: Path, code: str, *before: Path) -> subprocess.CompletedProcess[str]:
    """Run code with the archive at the end of its search path."""
    (directory / NAME).write_bytes(DIALECTS.library())
    paths = [str(path) for path in before]
    start = f"import sys\nsys.path[:] = {paths!r} + [p for p in sys.path if 'site-packages' not in p] + [{NAME!r}]\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + code], cwd=directory, capture_output=True, text=True, check=False
    )


def value(directory: Path, code: str) -> Any:
    """What code prints as JSON."""
    done = run(directory, f"import json\n{code}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "statement",
    [
        "from agenticassure import AgentResult, RunResult, Scenario, ScenarioRunResult, ScoreResult, Suite",
        "from agenticassure import SuiteConfig, TokenUsage, ToolCall, __version__, register_scorer",
        "from agenticassure.results import AgentResult, ToolCall, TokenUsage, ScoreResult, RunResult",
        "from agenticassure.scenario import Scenario, Suite, SuiteConfig",
        "from agenticassure.models import AgentResult, ScoreResult, Scenario",
        "from agenticassure.adapters import AgentAdapter",
        "from agenticassure.adapters.base import AgentAdapter",
        "from agenticassure.adapters.openai import OpenAIAdapter",
        "from agenticassure.adapters.langchain import LangChainAdapter",
        "from agenticassure.scorers import ExactMatchScorer, PassFailScorer, RegexScorer, Scorer, get_scorer",
        "from agenticassure.scorers import SimilarityScorer",
        "from agenticassure.scorers.base import Scorer, register_scorer, get_scorer, list_scorers",
        "from agenticassure.scorers.passfail import PassFailScorer",
        "from agenticassure.scorers.exact import ExactMatchScorer",
        "from agenticassure.scorers.regex import RegexScorer",
        "from agenticassure.scorers.similarity import SimilarityScorer",
    ],
)
def test_what_users_import_is_there(tmp_path: Path, statement: str) -> None:
    done = run(tmp_path, statement)
    assert (done.returncode, done.stderr) == (0, "")


def test_models_have_constructors_defaults_and_dumps(tmp_path: Path) -> None:
    code = """
from agenticassure import AgentResult, ToolCall, TokenUsage, Scenario
one = AgentResult(output="x", tool_calls=[ToolCall(name="t", arguments={"a": 1}), {"name": "u"}],
                  token_usage={"prompt_tokens": 3, "completion_tokens": "4"}, latency_ms=1, more="passed over")
again = AgentResult.model_validate_json(one.model_dump_json())
print(json.dumps([one.model_dump(), one == again, one.token_usage.total_tokens, one.tools_called,
                  AgentResult(output="").model_dump(exclude_none=True), one.model_copy(update={"output": "y"}).output,
                  Scenario(name="n", input="i").model_dump(exclude={"id"})]))
"""
    dumped, equal, total, called, smallest, copied, scenario = value(tmp_path, code)
    assert dumped == {
        "output": "x",
        "tool_calls": [
            {"name": "t", "arguments": {"a": 1}, "result": None},
            {"name": "u", "arguments": {}, "result": None},
        ],
        "reasoning_trace": None,
        "latency_ms": 1.0,
        "token_usage": {"prompt_tokens": 3, "completion_tokens": 4},
        "raw_response": None,
    }
    assert (equal, total, called, copied) == (True, 7, ["t", "u"], "y")
    assert smallest == {"output": "", "tool_calls": [], "latency_ms": 0.0}
    assert scenario == {
        "name": "n",
        "description": None,
        "input": "i",
        "expected_output": None,
        "expected_tools": None,
        "expected_tool_args": None,
        "tags": [],
        "metadata": {},
        "scorers": ["passfail"],
        "timeout_seconds": 30.0,
    }


def test_defaults_are_not_shared(tmp_path: Path) -> None:
    code = """
from agenticassure import AgentResult
one, other = AgentResult(output=""), AgentResult(output="")
one.tool_calls.append(1)
print(json.dumps(other.tool_calls))
"""
    assert value(tmp_path, code) == []


@pytest.mark.parametrize(
    "made",
    [
        "AgentResult()",
        "AgentResult(output=None)",
        "AgentResult(output=3)",
        "AgentResult(output='', tool_calls='t')",
        "AgentResult(output='', tool_calls=[{}])",
        "AgentResult(output='', token_usage={'prompt_tokens': 1.5})",
        "ToolCall(name='t', arguments=[1])",
        "ToolCall(name='t', arguments={1: 2})",
        "ScoreResult(scenario_id='a', scorer_name='b', score=1.01, passed=True)",
        "ScoreResult(scenario_id='a', scorer_name='b', score=float('nan'), passed=True)",
        "ScoreResult(scenario_id='a', scorer_name='b', score=1, passed='maybe')",
        "ScoreResult(scorer_name='b', score=1, passed=True)",
        "Scenario(name='a')",
    ],
)
def test_wrong_values_are_validation_errors(tmp_path: Path, made: str) -> None:
    code = f"""
from agenticassure import *
try:
    {made}
except ValueError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
    kind, text = value(tmp_path, code)
    assert kind == "ValidationError"
    assert "validation error" in text


def test_scorers_are_registered_and_replaced_by_name(tmp_path: Path) -> None:
    code = """
from agenticassure.scorers import get_scorer, list_scorers, register_scorer, Scorer
class Mine:
    name = "mine"
    def score(self, scenario, result): ...
register_scorer(Mine())
try:
    get_scorer("other")
except KeyError as error:
    said = str(error)
print(json.dumps([list_scorers(), isinstance(get_scorer("mine"), Scorer), "'other'" in said]))
"""
    assert value(tmp_path, code) == [["exact", "passfail", "regex", "similarity", "mine"], True, True]


@pytest.mark.parametrize(
    ("scorer", "scenario", "result", "passed"),
    [
        ("passfail", {}, {"output": "x"}, True),
        ("passfail", {}, {"output": " "}, False),
        ("passfail", {"expected_output": "HI"}, {"output": "this"}, True),
        ("passfail", {"expected_tools": ["t"]}, {"output": "x", "tool_calls": [{"name": "T"}]}, False),
        (
            "passfail",
            {"expected_tool_args": {"t": {"a": 2}}},
            {"output": "x", "tool_calls": [{"name": "t", "arguments": {"a": n}} for n in (1, 2)]},
            True,
        ),
        ("passfail", {"expected_tool_args": {"t": {"a": 2}}}, {"output": "x"}, False),
        ("exact", {"expected_output": "Yes "}, {"output": "\nyes"}, True),
        ("exact", {"expected_output": "Yes", "metadata": {"exact_normalize": False}}, {"output": "yes"}, False),
        ("exact", {}, {"output": ""}, False),
        ("regex", {"metadata": {"regex_pattern": "a.c"}}, {"output": "xabc"}, True),
        ("regex", {"metadata": {"regex_pattern": "("}}, {"output": "x"}, False),
        ("regex", {}, {"output": "x"}, False),
    ],
)
def test_the_built_in_scorers_can_be_asked(
    tmp_path: Path, scorer: str, scenario: dict[str, Any], result: dict[str, Any], passed: bool
) -> None:
    code = f"""
from agenticassure import AgentResult, Scenario
from agenticassure.scorers import get_scorer
found = get_scorer({scorer!r}).score(Scenario(name="n", input="i", **{scenario!r}), AgentResult(**{result!r}))
print(json.dumps([found.passed, found.score, found.scorer_name]))
"""
    assert value(tmp_path, code) == [passed, float(passed), scorer]


def test_adapters_of_frameworks(tmp_path: Path) -> None:
    (tmp_path / "openai.py").write_text(
        """
from types import SimpleNamespace as N
class OpenAI:
    def __init__(self, **keywords):
        self.chat = N(completions=N(create=self.create))
    def create(self, **request):
        call = N(function=N(name="look", arguments='{"q": 1}'))
        message = N(content=None, tool_calls=[call])
        return N(choices=[N(message=message)], usage=N(prompt_tokens=1, completion_tokens=2),
                 model_dump=lambda: {"request": request})
"""
    )
    code = """
import sys
sys.path.insert(0, ".")
from types import SimpleNamespace as N
from agenticassure.adapters import AgentAdapter
from agenticassure.adapters.openai import OpenAIAdapter
from agenticassure.adapters.langchain import LangChainAdapter
one = OpenAIAdapter(system_prompt="be kind", temperature=0)
steps = [(N(tool="t", tool_input="x"), "seen")]
chain = N(invoke=lambda given: {"output": given["input"].upper(), "intermediate_steps": steps})
other = LangChainAdapter(chain).run("hi")
found = one.run("hi")
print(json.dumps([isinstance(one, AgentAdapter), found.output, found.tools_called, found.token_usage.total_tokens,
                  found.raw_response["request"]["messages"], other.output, other.tool_calls[0].model_dump()]))
"""
    assert value(tmp_path, code) == [
        True,
        "",
        ["look"],
        3,
        [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}],
        "HI",
        {"name": "t", "arguments": {"input": "x"}, "result": "seen"},
    ]


def test_a_framework_that_is_missing_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "from agenticassure.adapters.openai import OpenAIAdapter\nOpenAIAdapter()")
    assert "OpenAIAdapter needs the package openai" in done.stderr


def test_an_installed_package_comes_first(tmp_path: Path) -> None:
    real = tmp_path / "real" / "agenticassure"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("__version__ = 'real'")
    done = run(tmp_path, "import agenticassure\nprint(agenticassure.__version__)", tmp_path / "real")
    assert done.stdout == "real\n"


def test_the_archive_is_small_and_of_the_library_alone() -> None:
    names = zipfile.ZipFile(io.BytesIO(DIALECTS.library())).namelist()
    assert {name.partition("/")[0] for name in names} == {"agenticassure"}
    assert all(name.endswith(".py") for name in names)
    assert len(DIALECTS.library()) < 64 << 10


def test_the_library_is_written_for_old_pythons() -> None:
    import ast

    for name in (archive := zipfile.ZipFile(io.BytesIO(DIALECTS.library()))).namelist():
        ast.parse(archive.read(name), feature_version=(3, 8))
