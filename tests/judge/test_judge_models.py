"""Names of judges: aliases by input, environment, default; providers by prefix or family."""

from __future__ import annotations

import pytest

from keystone_action.judge.judgement import DEFAULTS, JudgeFailed, JudgeModel, parse_model, resolve
from keystone_action.pricing import cost_of


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("claude-opus-4-8", JudgeModel("anthropic", "claude-opus-4-8")),
        ("anthropic:my-own", JudgeModel("anthropic", "my-own")),
        ("gpt-4o", JudgeModel("openai", "gpt-4o")),
        ("o3-mini", JudgeModel("openai", "o3-mini")),
        ("openai:meta-llama/Llama:free", JudgeModel("openai", "meta-llama/Llama:free")),
    ],
)
def test_whose_model_it_is(name: str, model: JudgeModel) -> None:
    assert parse_model(name) == model


@pytest.mark.parametrize("name", ["llama", "google:gemini", "openai:", "anthropic: ", "", ":x", "omega"])
def test_a_name_that_says_nothing(name: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_model(name)


@pytest.mark.parametrize(
    ("name", "environ", "fast", "expected"),
    [
        ("judge-fast", {}, None, DEFAULTS["judge-fast"]),
        ("paragon-fast", {}, None, DEFAULTS["judge-fast"]),
        ("paragon-max", {}, None, DEFAULTS["judge-strong"]),
        ("judge-fast", {"KEYSTONE_JUDGE_FAST": "gpt-4o"}, None, "gpt-4o"),
        ("paragon-fast", {"KEYSTONE_JUDGE_FAST": "gpt-4o"}, "claude-opus-5", "claude-opus-5"),
        ("judge-fast", {"KEYSTONE_JUDGE_FAST": ""}, "", DEFAULTS["judge-fast"]),
        ("judge-fast", {"KEYSTONE_JUDGE_FAST": "judge-strong", "KEYSTONE_JUDGE_STRONG": "gpt-4o"}, None, "gpt-4o"),
        ("claude-opus-5", {"KEYSTONE_JUDGE_FAST": "gpt-4o"}, "gpt-4o", "claude-opus-5"),
    ],
)
def test_aliases(name: str, environ: dict[str, str], fast: str | None, expected: str) -> None:
    assert resolve(name, environ=environ, fast=fast, strong=None).name == expected


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"KEYSTONE_JUDGE_FAST": "judge-fast"}, "leads back to an alias"),
        ({"KEYSTONE_JUDGE_FAST": "judge-strong", "KEYSTONE_JUDGE_STRONG": "judge-fast"}, "leads back to an alias"),
        ({"KEYSTONE_JUDGE_FAST": "llama"}, "judge-fast: can't tell whose model 'llama' is"),
    ],
)
def test_aliases_that_lead_nowhere(environ: dict[str, str], said: str) -> None:
    with pytest.raises(JudgeFailed, match=said):
        resolve("judge-fast", environ=environ, fast=None, strong=None)


def test_the_defaults_have_a_price() -> None:
    for name in DEFAULTS.values():
        assert cost_of("anthropic", name, uncached=1, output=1)


def test_models_that_take_no_temperature() -> None:
    assert not JudgeModel("anthropic", "claude-haiku-5-5").takes_temperature
    assert not JudgeModel("anthropic", "claude-haiku-5-5-20260801").takes_temperature
    assert JudgeModel("anthropic", "claude-haiku-4-5-20251001").takes_temperature
    assert JudgeModel("openai", "our-own").takes_temperature
