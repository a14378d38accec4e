"""The score of a cell: the worked examples of the source documents, and what must hold for any numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.scoring.composite import grade, show_score, weighted_mean
from keystone_action.scoring.results import InvariantResult


def check(name="c", score=1.0, *, weight=1.0, gate=False, status=None, on_skip=None, message=""):
    if status is None:
        status = "pass" if score == 1.0 else "fail"
    if status in ("skip", "error"):
        score = None
    return InvariantResult(
        name=name, type="t", status=status, score=score, weight=weight, gate=gate, message=message, on_skip=on_skip
    )


class TestEveryCheck:
    """AgenticAssure: a scenario passes when all its scorers pass, each by its own rule."""

    @pytest.mark.parametrize(
        ("checks", "verdict", "composite", "reason"),
        [
            ([check(), check("similarity", 0.8, status="pass")], "pass", 0.9, ""),
            ([check(), check("mine", 1.0, status="fail")], "fail", 1.0, "failed: mine"),
            ([check(), check("similarity", status="skip")], "pass", 1.0, ""),
            ([check("a", 0.0), check("b", 0.0)], "fail", 0.0, "failed: a, b"),
            ([check("a", status="error", message="no"), check()], "error", None, "check a broke: no"),
            ([check(status="skip")], "error", None, "nothing was graded: every check with weight was skipped"),
        ],
    )
    def test_each_has_to_pass(self, checks, verdict, composite, reason):
        found = grade(checks, threshold=1.0, every_check=True)
        assert (found.verdict, found.composite, found.reason) == (verdict, composite, reason)

    def test_what_disqualifies_still_does(self):
        found = grade([check()], threshold=1.0, every_check=True, forced_zero="it raised")
        assert (found.verdict, found.composite, found.reason) == ("fail", 0.0, "it raised")

    def test_skips_fail_where_that_is_asked_for(self):
        found = grade([check(), check("s", status="skip")], threshold=1.0, every_check=True, fail_on_skipped=True)
        assert found.verdict == "fail"


class TestKeystonesInvariantsPage:
    """000_66edd30c29bbac31.txt: "Weights and gates", "Patterns", "Scoring summary"."""

    def test_weights_and_gates_only_nice_to_have_fails(self):
        found = grade([check(gate=True), check(score=0.0, weight=0.3)], threshold=0.85)
        assert found.verdict == "fail"
        assert found.composite == pytest.approx(1.0 / 1.3)
        assert round(found.composite, 2) == 0.77
        assert found.reason == "composite 0.77 is below the threshold 0.85"

    def test_weights_and_gates_must_pass_fails(self):
        found = grade([check("must_pass", 0.0, gate=True), check(weight=0.3)], threshold=0.85)
        assert (found.verdict, found.composite) == ("fail", 0.0)
        assert "gate must_pass scored 0.00" in found.reason
        assert [r.disqualified for r in found.invariants] == [True, False]

    def test_pattern_one_everything_perfect(self):
        found = grade([check(gate=True), check(weight=0.3), check(weight=0.2)], threshold=0.85)
        assert (found.verdict, found.composite) == ("pass", 1.0)

    @pytest.mark.parametrize(("failing", "composite", "verdict"), [(1, 0.8, "fail"), (2, 1.3 / 1.5, "pass")])
    def test_pattern_one_one_nice_to_have_fails(self, failing, composite, verdict):
        # The page says "around 0.83, fail"; its own formula gives 0.80 or 0.867, and the formula wins.
        checks = [check(gate=True), check(weight=0.3), check(weight=0.2)]
        checks[failing] = check(score=0.0, weight=checks[failing].weight)
        found = grade(checks, threshold=0.85)
        assert found.composite == pytest.approx(composite)
        assert found.verdict == verdict

    def test_pattern_two_judge_contributes_its_score(self):
        checks = [check(weight=0.5, gate=True), check(weight=0.3), check(score=0.6, weight=0.2, status="fail")]
        assert grade(checks, threshold=0.9).composite == pytest.approx(0.92)

    def test_any_gate_below_one_disqualifies(self):
        assert grade([check(score=0.95, status="pass", gate=True)], threshold=0.5).composite == 0.0


class TestTouchstonesGradersPage:
    """004_722b8593dcd13c4e.txt: gates that only cap, skipped graders, combined weighted score."""

    def test_cap_only_gate_adds_no_credit(self):
        found = grade([check(gate=True, weight=0.0), check(score=0.5)], threshold=0.5)
        assert (found.verdict, found.composite) == ("pass", 0.5)

    def test_cap_only_gate_disqualifies(self):
        found = grade([check(score=0.0, gate=True, weight=0.0), check()], threshold=0.5)
        assert (found.verdict, found.composite) == ("fail", 0.0)

    def test_skipped_grader_leaves_both_sums(self):
        found = grade([check(score=0.4), check(status="skip", weight=9.0)], threshold=0.4)
        assert (found.verdict, found.composite) == ("pass", 0.4)


class TestAFailureThatIsCertain:
    """spec 5.1: a check that broke can't turn a certain failure into an error, which would be tried again."""

    BROKEN = check("script", status="error", message="no report.json\nmore")
    TOLD = "; besides, check script broke: no report.json"

    def test_a_failed_gate_is_a_failure_whatever_broke(self):
        found = grade([check("made", 0.0, gate=True), self.BROKEN], threshold=0.1)
        assert (found.verdict, found.composite, found.counted_as_zero) == ("fail", 0.0, ())
        assert found.reason == f"gate made scored 0.00, and a gate needs 1.00{self.TOLD}"

    def test_so_is_what_something_outside_the_checks_forces(self):
        found = grade([check(), self.BROKEN], threshold=0.1, forced_zero="forbidden.tools was violated: bash")
        assert (found.verdict, found.composite) == ("fail", 0.0)
        assert found.reason == f"forbidden.tools was violated: bash{self.TOLD}"

    @pytest.mark.parametrize(
        ("threshold", "verdict", "composite"), [(0.8, "fail", 0.25), (0.75, "error", None), (0.7, "error", None)]
    )
    def test_what_broke_is_given_all_it_could_have_earned(self, threshold, verdict, composite):
        # 0.25 as it is, 0.75 if the check in error had scored 1.
        checks = [check("a", 1.0), check("b", 0.0), check("script", status="error", weight=2.0, message="no")]
        found = grade(checks, threshold=threshold)
        assert (found.verdict, found.composite) == (verdict, composite)

    def test_its_composite_counts_what_broke_as_zero_and_says_so(self):
        found = grade([check("a", 0.0), check("b"), self.BROKEN, check("d", status="skip")], threshold=0.9)
        assert found.composite == pytest.approx(1 / 3)
        assert found.counted_as_zero == ("script",)
        assert (
            found.reason == f"composite 0.33 is below the threshold 0.90, and 0.67 is the most it could be{self.TOLD}"
        )

    def test_a_skipped_gate_hides_none_either(self):
        checks = [check("a", 0.0, gate=True), check("judge", status="skip", gate=True, message="no key")]
        found = grade(checks, threshold=0.5)
        assert found.verdict == "fail"
        assert found.reason.endswith("; besides, gate judge could not be applied: no key")

    def test_a_skipped_gate_leaves_what_could_still_pass_in_error(self):
        checks = [check("a"), check("judge", status="skip", gate=True, message="no key")]
        assert grade(checks, threshold=0.5).verdict == "error"

    def test_where_each_check_has_to_pass_one_that_failed_is_enough(self):
        found = grade([check("a", 0.0), self.BROKEN], threshold=1.0, every_check=True)
        assert (found.verdict, found.composite, found.counted_as_zero) == ("fail", 0.0, ("script",))
        assert found.reason == f"failed: a{self.TOLD}"

    def test_what_may_be_the_break_s_own_doing_is_an_error_still(self):
        assert grade([check("a"), self.BROKEN], threshold=0.9).verdict == "error"
        assert grade([self.BROKEN], threshold=1.0).verdict == "error"
        skipped = [check("a"), self.BROKEN, check("j", status="skip")]
        assert grade(skipped, threshold=0.5, fail_on_skipped=True).verdict == "error"

    @given(
        st.lists(st.tuples(st.floats(0, 1), st.floats(0, 3), st.sampled_from(["score", "error", "skip"])), max_size=6),
        st.floats(0, 1),
    )
    def test_it_is_said_exactly_where_no_score_of_what_broke_would_pass(self, drawn, threshold):
        checks = [check(f"c{i}", s, weight=w, status=None if k == "score" else k) for i, (s, w, k) in enumerate(drawn)]
        best = [check(c.name, 1.0, weight=c.weight) if c.status == "error" else c for c in checks]
        found = grade(checks, threshold=threshold)
        if any(c.status == "error" for c in checks):
            assert (found.verdict == "fail") == (grade(best, threshold=threshold).verdict == "fail")
            assert found.verdict != "pass"
        if found.verdict == "fail":
            assert found.composite is not None
            assert found.composite < threshold


class TestWhatTheSourcesLeaveOpen:
    """spec 5.1."""

    def test_any_error_is_an_error_and_never_a_pass(self):
        found = grade([check(), check("db", status="error", message="lost connection\nmore")], threshold=0.1)
        assert (found.verdict, found.composite) == ("error", None)
        assert found.reason == "check db broke: lost connection"

    def test_gate_passed_uses_the_checks_own_verdict(self):
        judge = check(score=0.8, status="pass", gate="passed")
        assert grade([judge], threshold=0.7).verdict == "pass"
        assert grade([check(score=0.8, status="fail", gate="passed")], threshold=0.7).composite == 0.0

    def test_skipped_gate_is_an_error(self):
        found = grade([check(), check("g", status="skip", gate=True, message="no key")], threshold=0.5)
        assert found.verdict == "error"
        assert found.reason == "gate g could not be applied: no key"

    def test_skipped_gate_may_be_ignored(self):
        assert grade([check(), check(status="skip", gate=True, on_skip="ignore")], threshold=1).verdict == "pass"

    def test_skip_of_a_plain_check_may_be_an_error(self):
        assert grade([check(), check(status="skip", on_skip="error")], threshold=0.5).verdict == "error"

    def test_nothing_graded_is_an_error(self):
        found = grade([check(status="skip"), check(weight=0.0)], threshold=0.0)
        assert (found.verdict, found.composite) == ("error", None)
        assert found.reason.startswith("nothing was graded")

    def test_failing_gate_fails_when_all_else_was_skipped(self):
        found = grade([check(score=0.0, gate=True, weight=0.0), check(status="skip")], threshold=0.5)
        assert (found.verdict, found.composite) == ("fail", 0.0)

    def test_fail_on_skipped(self):
        skipped = [check(), check("judge", status="skip")]
        assert grade(skipped, threshold=0.5, fail_on_skipped=True).verdict == "fail"
        ignored = [check(), check("judge", status="skip", on_skip="ignore")]
        assert grade(ignored, threshold=0.5, fail_on_skipped=True).verdict == "pass"

    def test_forced_zero_names_its_reason_before_the_gates(self):
        found = grade([check("g", 0.0, gate=True)], threshold=0.5, forced_zero="the agent exited with 1")
        assert found.composite == 0.0
        assert found.reason.startswith("the agent exited with 1; gate g")

    def test_threshold_has_a_tolerance_of_1e_9_and_no_more(self):
        assert grade([check(score=0.1 + 0.2, status="fail")], threshold=0.3).verdict == "pass"
        assert grade([check(score=0.3 - 1e-10, status="fail")], threshold=0.3).verdict == "pass"
        assert grade([check(score=0.3 - 1e-8, status="fail")], threshold=0.3).verdict == "fail"


def test_scores_are_short_unless_that_hides_the_side_of_a_threshold():
    assert show_score(0.85) == "0.85"
    assert show_score(1.0) == "1.00"
    assert show_score(1 / 1.3) == "0.77"
    assert (show_score(0.99999), show_score(0.00001)) == ("0.999990", "0.000010")
    assert (show_score(0.8496, beside=0.85), show_score(0.8496)) == ("0.8496", "0.85")
    assert show_score(0.84999999, beside=0.85) == "0.84999999"
    assert show_score(0.85, beside=0.85) == "0.85"


scores = st.floats(0, 1)
weights = st.floats(0, 1e308, allow_nan=False, allow_infinity=False)
checks = st.lists(
    st.builds(check, score=scores, weight=weights, gate=st.sampled_from([False, True, "passed"])), min_size=1
)


@given(checks)
def test_composite_is_a_number_from_0_to_1_or_nothing(results):
    found = grade(results, threshold=0.5)
    assert (found.composite is None) == (found.verdict == "error")
    if found.composite is not None:
        assert math.isfinite(found.composite)
        assert 0 <= found.composite <= 1


@given(checks, st.randoms(use_true_random=False))
def test_order_of_checks_does_not_matter(results, random):
    shuffled = random.sample(results, len(results))
    assert weighted_mean(shuffled) == weighted_mean(results)
    before, after = grade(results, threshold=0.5), grade(shuffled, threshold=0.5)
    assert (before.verdict, before.composite) == (after.verdict, after.composite)


@given(st.lists(st.tuples(scores, st.floats(0.001, 1000)), min_size=1), st.data())
def test_a_better_score_never_makes_the_composite_worse(pairs, data):
    index = data.draw(st.integers(0, len(pairs) - 1))
    better = data.draw(st.floats(pairs[index][0], 1))
    results = [check(score=score, weight=weight) for score, weight in pairs]
    improved = [*results]
    improved[index] = check(score=better, weight=pairs[index][1])
    before, after = weighted_mean(results), weighted_mean(improved)
    assert before is not None
    assert after is not None
    assert after >= before


@given(st.lists(scores, min_size=1))
def test_equal_scores_give_that_score(values):
    results = [check(score=values[0], weight=index + 0.1) for index, _ in enumerate(values)]
    assert weighted_mean(results) == pytest.approx(values[0], abs=1e-12)
