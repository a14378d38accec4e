"""What an artifact of another run is read as: nothing but a plain file of results, from the folder that was named."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from support.shard_runs import cell, spec, whole

from keystone_action.errors import UsageError
from keystone_action.github.foreign_results import read_bounded, read_foreign_results
from keystone_action.scoring.document import run_to_document

RUN = whole([spec("suite", [cell("suite", "one", 1)])])
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
