"""docs/statistics.md: its example is run as shown, its figures are those of the product; and whole calls with
`--fail-on regression`."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from support.command_line import ROOT, Called, keystone

from keystone_action.report.sentences.facts import certainty
from keystone_action.scoring.document import run_from_document
from keystone_action.scoring.statistics import detection, smallest_drop

PAGE = (ROOT / "docs" / "statistics.md").read_text("utf-8")
SPEC, _ = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(CONSOLE,) = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line.removeprefix("$ ") for line in CONSOLE.splitlines()]
SAID = re.findall(r"^- `(.*)`$", PAGE, re.MULTILINE)


def called(line: str, directory: Path) -> Called:
    """One command of the page: `NAME=value keystone …`."""
    setting, program, *words = shlex.split(line)
    assert program == "keystone"
    return keystone(*words, directory=directory, environ=dict([setting.split("=")]))


def test_the_example_does_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "keystone.yaml").write_text(SPEC)
    before, three, one = (called(line, tmp_path) for line in COMMANDS)
    assert (before.code, three.code, one.code) == (0, 0, 1), before.err + three.err + one.err
    for ran, said in ((three, "could be noise (p = 0.22, one-sided)"), (one, "more than noise (p = 0.024, one-sided)")):
        assert f"`{said}`" in PAGE.replace("\n", " ")
        assert said in ran.err
    assert "Regressions: 2 by the one-sided exact test (p < 0.05)." in one.err
    assert "Regressions" not in three.err
    summary = (tmp_path / "three" / "summary.md").read_text("utf-8")
    (spec,) = run_from_document(json.loads((tmp_path / "three" / "results.json").read_text())).specs
    assert len(SAID) == 3
    assert SAID[0] in summary
    assert certainty(spec) == SAID[1:]
    (spec,) = run_from_document(json.loads((tmp_path / "before" / "results.json").read_text())).specs
    (sentence,) = certainty(spec)
    assert f"`before/summary.md` says: `{sentence}`" in PAGE


def test_flips_threshold_and_no_baseline_in_whole_calls(tmp_path: Path) -> None:
    (tmp_path / "keystone.yaml").write_text(SPEC)
    few = "keystone run keystone.yaml --replicas 4"
    assert called(f"PASSES=4 {few} --output four", tmp_path).code == 0
    flip = called(f"PASSES=2 {few} --output two --baseline four --fail-on regression", tmp_path)
    assert flip.code == 1
    assert "Regressions: 1 as a flip, with fewer than 5 replicas on a side." in flip.err
    met = called(f"PASSES=3 {few} --output most --baseline four --fail-on regression", tmp_path)
    assert met.code == 0
    assert "Keystone: steady passed, but is flaky" in met.err
    lower = called(f"PASSES=0 {few} --output none --baseline two --fail-on regression --threshold 0.5", tmp_path)
    assert "Other rules than in the baseline: steady: threshold 1.00 → 0.50." in lower.err
    assert "steady › written: flaky (2/4) → fail (0/4)" in lower.err
    assert lower.code == 1
    alone = called(f"PASSES=2 {few} --output alone --fail-on regression", tmp_path)
    assert alone.code == 1
    assert "each spec's threshold decides" in alone.err


def rows(heading: str) -> list[list[str]]:
    _, _, rest = PAGE.partition(heading)
    table = re.findall(r"^\|(.*)\|$", rest.partition("\n## ")[0], re.MULTILINE)
    return [[one.strip() for one in line.split("|")] for line in table[2:]]


@pytest.mark.parametrize("row", rows("## The smallest drop"), ids=lambda row: row[0])
def test_the_table_of_drops_is_that_of_the_product(row: list[str]) -> None:
    for replicas in map(int, row[0].split(",")):
        found = smallest_drop([(replicas, replicas)])
        assert found is not None
        shown = ["none" if one is None else f"{one * 100:.0f} points" for one in (found.drop, found.drop_with_power)]
        assert shown == row[1:]


@pytest.mark.parametrize("row", rows("real drop?**"), ids=lambda row: row[0])
def test_the_table_of_detection_is_that_of_the_product(row: list[str]) -> None:
    before, after = map(float, row[0].split("→"))
    for shown, replicas in zip(row[1:], (5, 10, 30), strict=True):
        figure = shown.removesuffix(" %")
        digits = len(figure.partition(".")[2])
        assert f"{detection(before, after, replicas) * 100:.{digits}f}" == figure


def test_the_rates_of_false_alarms_are_those_of_the_product() -> None:
    text = PAGE.replace("\n", " ")
    said = re.search(
        r"at most ([\d.]+) % of comparisons with 5 replicas, ([\d.]+) % with 10 and ([\d.]+) % with 30", text
    )
    assert said is not None
    for shown, replicas in zip(said.groups(), (5, 10, 30), strict=True):
        assert f"{max(detection(p / 100, p / 100, replicas) for p in range(101)) * 100:.1f}" == shown
    assert "at a pass rate of 95 % in less than 0.4 %" in text
    assert all(detection(0.95, 0.95, replicas) < 0.004 for replicas in (5, 10, 30))
