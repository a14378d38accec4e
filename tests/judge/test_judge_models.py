"""Names of judges: aliases by input, environment, default; providers by prefix or family; prices."""

from __future__ import annotations

import pytest

from keystone_action.judge.base import JudgeFailed
from keystone_action.judge.models import DEFAULTS, KNOWN, Model, parse_model, resolve


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("claude-opus-4-8", Model("anthropic", "claude-opus-4-8")),
        ("anthropic:my-own", Model("anthropic", "my-own")),
        ("gpt-4o", Model("openai", "gpt-4o")),
        ("o3-mini", Model("openai", "o3-mini")),
        ("openai:meta-llama/Llama:free", Model("openai", "meta-llama/Llama:free")),
    ],
)
def test_whose_model_it_is(name: str, model: Model) -> None:
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
        assert KNOWN[name].price is not None


def test_prices() -> None:
    dated = Model("anthropic", "claude-haiku-4-5-20251001").known.price
    assert dated is not None
    assert dated.of(1_000_000, 1_000_000) == pytest.approx(6.0)
    tiered = KNOWN["claude-haiku-5-5"].price
    assert tiered is not None
    assert tiered.of(100_000, 0) == pytest.approx(0.01)
    assert tiered.of(100_001, 1000) == pytest.approx(0.100001 * 0.5 + 0.0025)
    assert Model("openai", "gpt-4o").known.price is None
