"""How sure the figures are, in sentences: each with its n, and none that says nothing."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from support.shard_runs import cell, runs, spec, whole

from keystone_action.report.sentences.facts import certainty
from keystone_action.report.sentences.view import needs, spec_views
from keystone_action.report.summary import render_summary
from keystone_action.report.write import render
from keystone_action.scoring.results import CellResult, CompositeInterval, Reliability, RunResult, SmallestDrop


def replicas(passed: int, total: int, scenario: str = "one") -> list[CellResult]:
    return [cell("alpha", scenario, n, "pass" if n < passed else "fail", score=float(n < passed)) for n in range(total)]


def said(*cells: CellResult) -> list[str]:
    return certainty(spec("alpha", list(cells), rule="any"))


def test_nothing_of_one_cell_nor_of_single_replicas() -> None:
    assert said(*replicas(1, 1)) == []
    assert said(*replicas(1, 1), *replicas(0, 1, "two")) == []
    assert certainty(spec("alpha", [cell("alpha", "one", 0, "error")])) == []


@pytest.mark.parametrize(
    ("passed", "total", "sentences"),
    [
        (2, 2, ["2 replicas are too few to tell a drop from noise: 5 are needed"]),
        (
            3,
            4,
            [
                "pass@1 0.75, pass@3 1.00, pass^3 0.25 (n = 4 replicas)",
                "4 replicas are too few to tell a drop from noise: 5 are needed",
            ],
        ),
        (0, 5, []),
        (5, 5, ["with 5 replicas only a drop of 80 points would show"]),
        (
            3,
            5,
            [
                "pass@1 0.60, pass@3 1.00, pass^3 0.10 (n = 5 replicas)",
                "with 5 replicas and a pass rate of 60% no drop would show",
            ],
        ),
        (30, 30, ["with 30 replicas only a drop of 17 points would show"]),
        (2_000, 2_000, ["with 2,000 replicas only a drop of 0.25 points would show"]),
    ],
)
def test_of_replicas(passed: int, total: int, sentences: list[str]) -> None:
    assert said(*replicas(passed, total)) == sentences


def test_of_scenarios_with_replicas() -> None:
    found = said(*replicas(5, 5), *replicas(3, 5, "two"), *replicas(5, 6, "six"))
    assert found == [
        "pass@1 0.81, pass@3 1.00, pass^3 0.53 (n = 5 replicas of each of 3 groups)",
        "with 5 replicas only a drop of 80 points would show",
    ]


def test_of_scenarios_with_scores() -> None:
    scores = [1.0, 0.9, 0.4, 1.0, 0.7, 1.0, 1.0, 0.8, 1.0, 0.2, 1.0, 0.96]
    cells = [replace(cell("alpha", f"s{n}", 0), composite=score) for n, score in enumerate(scores)]
    (sentence,) = said(*cells)
    assert sentence == "composite 0.83, 95% interval 0.62–0.94 over 12 scenarios"
    Random(5).shuffle(cells)
    assert said(*cells) == [sentence]


@given(runs())
@settings(max_examples=3 * settings().max_examples // 10, deadline=None)
def test_every_sentence_has_its_n(run: RunResult) -> None:
    for found in run.specs:
        for sentence in certainty(found):
            assert "replica" in sentence or "scenario" in sentence
            assert any(word.isdigit() for word in sentence.replace(",", " ").replace("(", " ").split())


def test_every_report_of_people_has_them() -> None:
    run = whole([spec("alpha", replicas(3, 5), rule="any")])
    assert "with 5 replicas and a pass rate of 60% no drop would show" in render_summary(run)
    assert "with 5 replicas and a pass rate of 60% no drop would show" in render(run, "html")
    (view,) = spec_views(run)
    assert any(one.startswith("pass rate 60% of 5 cells (95% interval 23% to 88%)") for one in view.statistics)


@pytest.mark.parametrize(
    ("rule", "needed"), [("any", "a cell needs 0.85"), ("mean", "needs 0.85"), ("all", "a cell needs 0.85")]
)
def test_a_mean_stands_beside_no_threshold_that_it_need_not_reach(rule: str, needed: str) -> None:
    """ "composite 0.80, needs 1.00" of a spec that passed would contradict its verdict."""
    of_several = spec("alpha", [*replicas(1, 2)], rule=rule)
    assert needs([replace(of_several, pass_threshold=0.85)]) == needed
    assert needs([replace(spec("alpha", replicas(1, 1)), pass_threshold=0.85)]) == "needs 0.85"


def test_results_that_contradict_themselves_break_nothing() -> None:
    """They can be other machines' words: what is said is at most wrong."""
    odd = replace(
        spec("alpha", replicas(3, 5)),
        composite=None,
        composite_interval=CompositeInterval(0.9, 0.1, 0, "scenarios", "abc"),
        reliability=Reliability(10**9, 0, (), (0.5,)),
        smallest_drop=SmallestDrop(0, 7.0, None, None),
    )
    assert certainty(odd) == ["0 replicas are too few to tell a drop from noise: 5 are needed"]
    assert certainty(replace(odd, reliability=Reliability(5, 1, (0.5, 0.6), (0.5,)), smallest_drop=None)) == []
