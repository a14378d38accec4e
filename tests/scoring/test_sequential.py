"""When replicas stop: the test against every possible outcome, against simulation, and what groups come to."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.shard_runs import cell, spec, whole

from keystone_action.scoring.aggregate import decide_spec
from keystone_action.scoring.comparison import compare_runs
from keystone_action.scoring.results import CellResult, StoppingRule
from keystone_action.scoring.sequential import (
    Aggregation,
    GroupTest,
    Outcome,
    is_decided,
    meets,
    rate_interval,
    stopped_pass_rate,
)
from keystone_action.scoring.statistics import with_certainty

RULE = StoppingRule(min=3, max=20, confidence=0.95)


def ends_of(rule: StoppingRule, aggregation: Aggregation, rate: float) -> dict[tuple[int, int], float]:
    """How probable each end (replicas, passes) is, when one replica runs after the other."""
    ends: dict[tuple[int, int], float] = {}
    running = {(0, 0): 1.0}
    for count in range(1, rule.max + 1):
        after: dict[tuple[int, int], float] = {}
        for (_, passed), weight in running.items():
            for passes, chance in ((passed + 1, rate), (passed, 1 - rate)):
                after[count, passes] = after.get((count, passes), 0.0) + weight * chance
        # What earlier looks said is known: they let it run.
        stopped = {end for end in after if count == rule.max or is_decided(rule, aggregation, least_sided(*end))}
        ends |= {end: weight for end, weight in after.items() if end in stopped}
        running = {end: weight for end, weight in after.items() if end not in stopped}
    return ends


def least_sided(count: int, passed: int) -> list[Outcome]:
    """So many replicas in an order in which no earlier look is more one-sided than the last."""
    more, fewer = (True, False) if passed * 2 >= count else (False, True)
    pairs = min(passed, count - passed)
    return [*(fewer, more) * pairs, *[more] * (count - 2 * pairs)]


def is_open(rule: StoppingRule, count: int, passed: int) -> bool:
    """Whether a group under `majority` stopped early although the rest could have changed what comes out."""
    needed = rule.max // 2 + 1
    return count < rule.max and passed < needed and count - passed <= rule.max - needed


def is_wrong(rate: float, count: int, passed: int) -> bool:
    """Whether it is on the other side of one half than its true rate; at one half each side is wrong."""
    return rate == 0.5 or (passed * 2 > count) != (rate > 0.5)


class TestErrorRates:
    @pytest.mark.parametrize("rate", [0.5, 0.45, 0.6, 0.9])
    @pytest.mark.parametrize("most", [20, 60])
    @pytest.mark.parametrize("confidence", [0.8, 0.95])
    def test_a_group_that_stops_early_is_on_the_right_side_as_often_as_promised(
        self, rate: float, most: int, confidence: float
    ) -> None:
        rule = StoppingRule(3, most, confidence)
        ends = ends_of(rule, "majority", rate)
        assert sum(ends.values()) == pytest.approx(1)
        wrong = [weight for end, weight in ends.items() if is_open(rule, *end) and is_wrong(rate, *end)]
        assert sum(wrong) <= 1 - confidence

    @pytest.mark.slow
    @pytest.mark.parametrize("rate", [0.3, 0.5, 0.8])
    def test_in_ten_thousand_simulated_runs_too(self, rate: float) -> None:
        rule = StoppingRule(3, 30, 0.9)
        draw, wrong, ran = random.Random(20261129), 0, 0
        for _ in range(10_000):
            test, passed, count = GroupTest(rule, "majority"), 0, 0
            while count < rule.max and not test.is_decided:
                outcome = draw.random() < rate
                test.add(count, outcome)
                passed, count = passed + outcome, count + 1
            ran += count
            wrong += is_open(rule, count, passed) and is_wrong(rate, count, passed)
        assert wrong / 10_000 <= 0.1
        assert ran < 10_000 * rule.max

    def test_fewer_replicas_run_where_the_rate_is_plain(self) -> None:
        means = [sum(n * w for (n, _), w in ends_of(RULE, "majority", rate).items()) for rate in (0.95, 0.7, 0.5)]
        assert means == pytest.approx([8.6, 15.1, 17.2], abs=0.05)  # the table in docs/statistics.md

    def test_the_sequence_holds_the_true_rate_at_every_look_at_once(self) -> None:
        """Which an interval for a fixed number does not: Wilson's misses it in a third of the runs."""
        draw, missed = random.Random(7), 0
        for _ in range(1_000):
            passed = 0
            for count in range(1, 61):
                passed += draw.random() < 0.6
                low, high = rate_interval(passed, count)
                if not low <= 0.6 <= high:
                    missed += 1
                    break
        assert missed <= 50


class TestWhenItIsDecided:
    @pytest.mark.parametrize(
        ("aggregation", "outcomes", "decided"),
        [
            ("all", [True, False], False),  # fewer than min
            ("all", [True, True, False], True),
            ("all", [None, True, True, False], True),  # the first could not be graded
            ("all", [True] * 19, False),
            ("any", [False, False, False], False),
            ("any", [False, False, True], True),
            ("majority", [True] * 6, False),
            ("majority", [True] * 7, True),
            ("majority", [None, *[True] * 6], False),
            ("majority", [None, *[True] * 7], True),
            ("majority", [*[True, False] * 9, True], False),
            ("majority", [*[True, False] * 9, False], True),  # ten of twenty are not more than half
            (18, [True] * 19, True),
            (18, [False, False, True], False),
            (18, [False, False, False], True),
            ("mean", [False] * 19, False),
        ],
    )
    def test_by_rule(self, aggregation: Aggregation, outcomes: list[Outcome], decided: bool) -> None:
        assert is_decided(RULE, aggregation, outcomes) is decided

    def test_quick_replicas_do_not_come_before_their_turn(self) -> None:
        """An agent that fails quickly must not be judged by its quick runs alone."""
        test = GroupTest(RULE, "majority")
        for place in range(1, 9):
            test.add(place, False)
        assert not test.is_decided
        test.add(0, False)
        assert test.is_decided

    def test_what_the_rest_can_not_change_does(self) -> None:
        test = GroupTest(RULE, "majority")
        for place in range(1, 11):
            test.add(place, False)
        assert test.is_decided

    @given(
        outcomes=st.lists(st.sampled_from([True, False, None]), max_size=20),
        aggregation=st.sampled_from(["all", "any", "majority", 1, 13, 20]),
        least=st.integers(1, 20),
        confidence=st.floats(0.5, 0.999),
        order=st.randoms(use_true_random=False),
    )
    def test_it_is_the_same_in_whatever_order_they_end_and_stays_decided(
        self, outcomes: list[Outcome], aggregation: Aggregation, least: int, confidence: float, order: random.Random
    ) -> None:
        rule = StoppingRule(least, 20, confidence)
        places = list(range(len(outcomes)))
        order.shuffle(places)
        test, decided = GroupTest(rule, aggregation), False
        for place in places:
            test.add(place, outcomes[place])
            assert test.is_decided >= decided
            decided = test.is_decided
        assert decided is is_decided(rule, aggregation, outcomes)

    @given(aggregation=st.sampled_from(["all", "any", "majority", 1, 7, 10]), outcomes=st.lists(st.booleans()))
    def test_what_the_rest_could_not_change_comes_out_as_if_it_had_run(
        self, aggregation: Aggregation, outcomes: list[bool]
    ) -> None:
        """With a confidence that no test reaches, what stops early is certain."""
        rule = StoppingRule(1, 10, 1 - 1e-15)
        ran = outcomes[:10]
        for count in range(1, len(ran)):
            if is_decided(rule, aggregation, ran[:count]):
                early = meets(aggregation, sum(ran[:count]), count, 10)
                for rest in (True, False):
                    whole = ran[:count] + [rest] * (10 - count)
                    assert meets(aggregation, sum(whole), 10, 10) is early
                break


class TestInterval:
    @given(total=st.integers(1, 200), data=st.data(), confidence=st.floats(0.5, 0.999))
    def test_it_is_around_the_rate_and_narrows_with_less_confidence(
        self, total: int, data: st.DataObject, confidence: float
    ) -> None:
        passed = data.draw(st.integers(0, total))
        low, high = rate_interval(passed, total, confidence)
        assert 0 <= low <= passed / total <= high <= 1
        wider = rate_interval(passed, total, 1 - (1 - confidence) / 2)
        assert wider[0] <= low + 1e-12
        assert high <= wider[1] + 1e-12

    def test_of_several_groups_it_holds_for_all_at_once(self) -> None:
        one, two = stopped_pass_rate([(8, 8)]), stopped_pass_rate([(8, 8), (8, 8)])
        assert one is not None
        assert two is not None
        assert (one.value, one.n, two.value, two.n) == (1, 8, 1, 16)
        assert two.low < one.low
        assert stopped_pass_rate([(0, 0)]) is None


SPARED = tuple(f"alpha.alpha.r{number}" for number in range(8, 20))


def test_a_group_that_stopped_is_no_sample_of_a_fixed_size() -> None:
    """Fisher's test takes both sides for one; such a group is compared by its verdict, as one of few replicas is."""
    cells = [cell("alpha", "alpha", number) for number in range(8)]
    fixed = spec("alpha", cells, rule="majority")
    head = replace(fixed, stopping=RULE)
    stopped = with_certainty(decide_spec(head, cells, SPARED))
    assert (stopped.groups[0].not_run, stopped.groups[0].reason) == (12, "decided after 8 of 20")
    for one, tested, spared in ((fixed, True, ()), (stopped, False, SPARED)):
        run = whole([one])
        worse = replace(run, specs=(decide_spec(one, [failed(each) for each in cells], spared),))
        compared = compare_runs(run, worse, source="before")
        (group,) = compared.groups
        assert (group.p_worse is not None) is (group.p_value is not None) is tested
        assert (compared.specs[0].p_value is not None) is tested
        assert group.regression == ("test" if tested else "flip")
    changed = compare_runs(whole([fixed]), whole([stopped]), source="before").changed_rules
    assert changed == ("alpha: replicas in a fixed number → 3 to 20 until decided (0.95)",)


def test_what_did_not_have_to_run_is_what_the_plan_says() -> None:
    """Of replicas that `--filter` chose all ran, though there are fewer than max."""
    cells = [cell("alpha", "alpha", number) for number in range(8)]
    head = replace(spec("alpha", cells, rule="majority"), stopping=RULE)
    (group,) = decide_spec(head, cells).groups
    assert (group.not_run, group.reason) == (0, "")
    undecided = decide_spec(head, cells[:4], SPARED).groups[0]
    assert (undecided.not_run, undecided.total) == (0, 4)


def failed(passed: CellResult) -> CellResult:
    return cell("alpha", "alpha", passed.replica, "fail", score=0.0)
