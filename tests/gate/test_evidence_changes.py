"""What a change does to the rules on evidence, the gateway and what agents may see: which way it goes, in words."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.gate.findings import Level
from keystone_action.gate.spec_changes import evidence_changes
from keystone_action.spec.models.gateway import Gateway
from keystone_action.spec.models.policies import Audit, Forbidden

RULES: dict[str, list[str]] = {
    "db_writes_outside": ["orders"],
    "http_except": ["api"],
    "file_writes_outside": ["src/"],
    "tools": ["fetch"],
    "commands": ["curl"],
}


def document(**sections: Any) -> dict[str, Any]:
    """As a spec's document has these sections, with all their defaults."""
    gateway = sections.get("gateway")
    return {
        "forbidden": Forbidden(**sections.get("forbidden", {})).model_dump(),
        "audit": Audit(**sections.get("audit", {})).model_dump(),
        "gateway": Gateway(**gateway).model_dump() if isinstance(gateway, dict) else gateway,
        "agent": {"trace": sections.get("trace")},
        "resources": {"readable": sections.get("readable", [])},
        "network": {"egress": {"allow": sections.get("hosts", [])}},
    }


def told(before: dict[str, Any], after: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = sorted(evidence_changes(document(**before), document(**after)), key=lambda one: one.rank)
    weakening = tuple(one.text for one in found if one.level < Level.STRICTER)
    return weakening, tuple(one.text for one in found if one.level is Level.STRICTER)


@pytest.mark.parametrize(
    ("weak", "strong", "weakened", "strengthened"),
    [
        pytest.param(
            {},
            {"forbidden": {"db_writes_outside": ["orders"]}},
            "forbidden.db_writes_outside is gone",
            'forbidden.db_writes_outside is new: ["orders"]',
            id="a rule",
        ),
        pytest.param(
            {"forbidden": {"db_writes_outside": ["orders", "*"]}},
            {"forbidden": {"db_writes_outside": ["orders"]}},
            "forbidden.db_writes_outside has one entry more: *",
            "forbidden.db_writes_outside has one entry fewer: *",
            id="what is allowed",
        ),
        pytest.param(
            {"forbidden": {"tools": ["fetch"]}},
            {"forbidden": {"tools": ["fetch", "bash", "web"]}},
            "forbidden.tools has 2 entries fewer: bash, web",
            "forbidden.tools has 2 entries more: bash, web",
            id="what is forbidden",
        ),
        pytest.param(
            {},
            {"forbidden": {"secrets_in_logs": "deny"}},
            "forbidden.secrets_in_logs is gone",
            "forbidden.secrets_in_logs is new: deny",
            id="secrets",
        ),
        pytest.param(
            {},
            {"audit": {"db_writes": True}},
            "audit.db_writes true → false",
            "audit.db_writes false → true",
            id="audit",
        ),
        pytest.param({"gateway": "off"}, {}, "gateway none → off", "gateway off → none", id="off"),
        pytest.param({}, {"gateway": {}}, "gateway is gone", "gateway is new", id="gateway"),
        pytest.param(
            {"gateway": {"mode": "replay"}},
            {"gateway": {}},
            "gateway.mode live → replay",
            "gateway.mode replay → live",
            id="mode",
        ),
        pytest.param(
            {"gateway": {"match": "turn"}},
            {"gateway": {"match": "content"}},
            "gateway.match content → turn",
            "gateway.match turn → content",
            id="match",
        ),
        pytest.param(
            {"gateway": {"ignore": [r"\d+"]}},
            {"gateway": {}},
            r"gateway.ignore has one pattern more: \d+",
            r"gateway.ignore has one pattern fewer: \d+",
            id="ignore",
        ),
        pytest.param(
            {"gateway": {"budget": {"max_cost_usd": 5}}},
            {"gateway": {"budget": {"max_cost_usd": 0.5}}},
            "gateway.budget.max_cost_usd 0.5 → 5",
            "gateway.budget.max_cost_usd 5 → 0.5",
            id="budget",
        ),
        pytest.param(
            {"gateway": {}},
            {"gateway": {"budget": {"max_requests": 9}}},
            "gateway.budget.max_requests 9 → none",
            "gateway.budget.max_requests none → 9",
            id="no budget",
        ),
        pytest.param(
            {"gateway": {}},
            {"gateway": {"models": ["claude-*"]}},
            'gateway.models ["claude-*"] → none',
            'gateway.models none → ["claude-*"]',
            id="any model",
        ),
        pytest.param(
            {"gateway": {"models": ["claude-*", "*"]}},
            {"gateway": {"models": ["claude-*"]}},
            "gateway.models has one model more: *",
            "gateway.models has one model fewer: *",
            id="models",
        ),
        pytest.param(
            {"gateway": {"providers": ["openai", "gemini"]}},
            {"gateway": {"providers": ["openai"]}},
            "gateway.providers has one provider more: gemini",
            "gateway.providers has one provider fewer: gemini",
            id="providers",
        ),
        pytest.param(
            {"gateway": {"prices": {"m": {"input": 1.0, "output": 2.0}}}},
            {"gateway": {}},
            "gateway.prices.m changed",
            "gateway.prices.m changed",
            id="prices",
        ),
        pytest.param(
            {"gateway": {"provider_tools": "allow"}},
            {"gateway": {"provider_tools": "deny"}},
            "gateway.provider_tools deny → allow",
            "gateway.provider_tools allow → deny",
            id="tools of providers",
        ),
        pytest.param(
            {"readable": ["/srv/tools"]},
            {},
            "resources.readable has one folder more: /srv/tools",
            "resources.readable has one folder fewer: /srv/tools",
            id="readable",
        ),
    ],
)
def test_each_way(weak: dict[str, Any], strong: dict[str, Any], weakened: str, strengthened: str) -> None:
    assert told(strong, weak) == ((weakened,), ())
    assert told(weak, strong) == ((), (strengthened,))


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ({"gateway": {}}, {"gateway": {"recordings": "other"}}, "gateway.recordings none → other"),
        ({"gateway": {"recordings": "a"}}, {"gateway": {"recordings": "b"}}, "gateway.recordings a → b"),
        ({}, {"gateway": {"match": "turn"}}, "gateway.match content → turn"),
        (
            {"gateway": {"prices": {"m": {"input": 1.0, "output": 2.0}}}},
            {"gateway": {"prices": {"m": {"input": 0.1, "output": 2.0}}}},
            "gateway.prices.m.input 1 → 0.1",
        ),
        ({"trace": {"format": "claude"}}, {"trace": {"format": "codex"}}, "agent.trace.format claude → codex"),
        ({"trace": {"path": "t"}}, {}, 'agent.trace {"path": "t"} → none'),
        ({}, {"trace": {"path": "t"}}, 'agent.trace none → {"path": "t"}'),
    ],
)
def test_what_may_let_more_pass_whichever_way(before: dict[str, Any], after: dict[str, Any], sentence: str) -> None:
    assert told(before, after) == ((sentence,), ())


def test_what_is_replaced_goes_both_ways() -> None:
    found = told({"forbidden": {"commands": ["curl", "nc"]}}, {"forbidden": {"commands": ["curl", "^$"]}})
    assert found == (("forbidden.commands has one entry fewer: nc",), ("forbidden.commands has one entry more: ^$",))


def test_a_gateway_that_goes_takes_its_limits_along() -> None:
    weakening, _ = told({"gateway": {"budget": {"max_tokens": 100}, "provider_tools": "deny"}}, {})
    assert weakening == (
        "gateway is gone",
        "gateway.budget.max_tokens 100 → none",
        "gateway.provider_tools deny → none",
    )


def test_a_crowd_of_entries_is_counted() -> None:
    weakening, _ = told({"gateway": {}}, {"gateway": {"ignore": [f"p{n}" for n in range(1_200)]}})
    assert weakening == ("gateway.ignore has 1,200 patterns more: p0, p1, p2 and 1,197 more",)


SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "forbidden": st.fixed_dictionaries({}, optional={name: st.just(value) for name, value in RULES.items()}),
        "audit": st.fixed_dictionaries({}, optional={"processes": st.booleans(), "db_writes": st.booleans()}),
        "gateway": st.one_of(
            st.none(),
            st.just("off"),
            st.fixed_dictionaries(
                {},
                optional={
                    "match": st.sampled_from(["content", "turn"]),
                    "mode": st.sampled_from(["live", "record", "replay"]),
                    "ignore": st.lists(st.sampled_from(["a", "b", "c"]), unique=True),
                    "models": st.one_of(st.none(), st.just(["m"])),
                    "budget": st.fixed_dictionaries({}, optional={"max_requests": st.integers(0, 3)}),
                },
            ),
        ),
        "trace": st.one_of(st.none(), st.just({"path": "t"})),
        "readable": st.lists(st.sampled_from(["a", "b"]), unique=True),
    },
)


@given(SECTIONS, SECTIONS)
def test_something_is_said_exactly_when_something_differs(before: dict[str, Any], after: dict[str, Any]) -> None:
    differ = yaml.safe_dump(_sorted(document(**before))) != yaml.safe_dump(_sorted(document(**after)))
    assert any(told(before, after)) == differ


def _sorted(value: Any) -> Any:
    """What an order of entries does not change."""
    if isinstance(value, dict):
        return {name: _sorted(item) for name, item in value.items()}
    return sorted(value) if isinstance(value, list) and all(isinstance(one, str) for one in value) else value


def test_every_rule_and_field_is_compared() -> None:
    """A field that the contract gets later can't be left out unseen."""
    other: dict[str, Any] = {
        "providers": ["openai"],
        "mode": "record",
        "recordings": "r",
        "match": "turn",
        "ignore": ["x"],
        "budget": {"max_cost_usd": 1.0},
        "models": ["m"],
        "prices": {"m": {"input": 1.0, "output": 1.0}},
        "provider_tools": "deny",
    }
    assert other.keys() == Gateway.model_fields.keys()
    for name, value in other.items():
        assert any(told({"gateway": {}}, {"gateway": {name: value}})), name
    rules = {**RULES, "secrets_in_logs": "deny"}
    assert rules.keys() == Forbidden.model_fields.keys()
    for name, rule in rules.items():
        assert told({"forbidden": {name: rule}}, {}) == ((f"forbidden.{name} is gone",), ())
    for name in Audit.model_fields:
        assert told({"audit": {name: True}}, {}) == ((f"audit.{name} true → false",), ())
