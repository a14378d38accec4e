"""What an artifact of another run is read as: nothing but a plain file of results, from the folder that was named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from report import samples
from support.shard_runs import cell, spec, whole

from keystone_action.errors import UsageError
from keystone_action.github import foreign_comment as foreign_results
from keystone_action.github.foreign_comment import read_bounded, read_foreign_results
from keystone_action.scoring.document import run_to_document

RUN = whole([spec("suite", [cell("suite", "one", 1)])])
PASSING = samples.passing()
RESULTS = json.dumps(run_to_document(RUN))


def test_results_are_read_in_the_folder_or_the_only_one_in_it(tmp_path: Path) -> None:
    inner = tmp_path / "artifact"
    inner.mkdir()
    (inner / "results.json").write_text(RESULTS)
    for folder in (inner, tmp_path):
        found = read_foreign_results(folder)
        assert asdict(found)["verdict"] == RUN.verdict
        assert [one.id for one in found.specs] == ["suite"]


@pytest.mark.parametrize("linked", ["results.json", "artifact"])
def test_a_link_is_not_followed(tmp_path: Path, linked: str) -> None:
    secret, folder = tmp_path / "secret", tmp_path / "downloaded"
    secret.mkdir()
    folder.mkdir()
    (secret / "results.json").write_text(RESULTS)
    (folder / linked).symlink_to(secret / "results.json" if linked == "results.json" else secret)
    with pytest.raises(UsageError, match=r"can't be read|no results\.json"):
        read_foreign_results(folder)


def test_a_link_is_not_followed_to_its_content(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "results.json").symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match="can't be read"):
        read_bounded(tmp_path / "results.json")


def left(folder: Path, change: Callable[[dict[str, Any]], None] = lambda _: None) -> Path:
    document = json.loads(json.dumps(run_to_document(PASSING)))
    change(document)
    (folder / "results.json").write_text(json.dumps(document), "utf-8")
    return folder


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "results.json")
    with pytest.raises(UsageError, match="is not a regular file"):
        read_foreign_results(tmp_path)


def test_no_more_than_the_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (left(tmp_path) / "results.json").stat().st_size
    monkeypatch.setattr(foreign_results, "MAX_RESULTS", size)
    assert read_foreign_results(tmp_path) == PASSING
    monkeypatch.setattr(foreign_results, "MAX_RESULTS", size - 1)
    with pytest.raises(UsageError, match="bytes; at most"):
        read_foreign_results(tmp_path)


@pytest.mark.parametrize("amount", [-1, 1e13])
@pytest.mark.parametrize(
    "place",
    [
        ("duration_s",),
        ("counts", "cells"),
        ("specs", 0, "positions", "done"),
        ("specs", 0, "cells", 0, "duration_s"),
        ("specs", 0, "cells", 0, "invariants", 0, "weight"),
    ],
    ids=str,
)
def test_amounts_out_of_range_are_refused(tmp_path: Path, place: tuple[Any, ...], amount: float) -> None:
    def change(document: dict[str, Any]) -> None:
        inner: Any = document
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = amount if place[0] == "duration_s" or "weight" in place else int(amount)

    with pytest.raises(UsageError):
        read_foreign_results(left(tmp_path, change))


def test_scores_above_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read_foreign_results(left(tmp_path, lambda document: document.update(composite=1.5)))
    assert read_foreign_results(left(tmp_path, lambda document: document.update(composite=0.5))) == replace(
        PASSING, composite=0.5
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pass_rate", {"value": 1.0, "low": 0.2, "high": 1.0, "n": -1}),
        ("composite_interval", {"low": 0.5, "high": 1.5, "n": 5, "unit": "scenarios", "method": "bootstrap"}),
        ("composite_interval", {"low": 0.5, "high": 0.9, "n": -5, "unit": "scenarios", "method": "bootstrap"}),
        ("composite_interval", {"low": 0.5, "high": 0.9, "n": 5, "unit": "<img>", "method": "bootstrap"}),
        ("reliability", {"replicas": 5, "groups": 1, "pass_at_k": [0.6, 2.0], "pass_hat_k": [0.6, 0.3]}),
        ("reliability", {"replicas": 5, "groups": -1, "pass_at_k": [0.6, 0.9], "pass_hat_k": [0.6, 0.3]}),
        ("smallest_drop", {"replicas": 5, "rate": 1.0, "drop": -0.8, "drop_with_power": None}),
        ("smallest_drop", {"replicas": 10**13, "rate": 1.0, "drop": 0.8, "drop_with_power": None}),
    ],
)
def test_figures_of_certainty_out_of_range_are_refused(tmp_path: Path, name: str, value: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        read_foreign_results(left(tmp_path, lambda document: document["specs"][0].update({name: value})))
