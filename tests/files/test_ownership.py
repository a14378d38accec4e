"""Whose the files are that a step as root leaves behind."""

from __future__ import annotations

import os
from pathlib import Path

from keystone_action.files.copies import hand_over, missing_folders


def test_what_a_link_leads_to_is_not_given_away(tmp_path: Path) -> None:
    """The agent may have put one in the place of the results, or among them."""
    is_root = os.geteuid() == 0
    owner = 4321 if is_root else os.geteuid()
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    for folder in (workspace / "results", outside):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    if is_root:
        os.chown(workspace, owner, owner)
    links = [workspace / "replaced", workspace / "results" / "folder", workspace / "results" / "file link"]
    for link, target in zip(links, (outside, outside, outside / "file"), strict=True):
        link.symlink_to(target)
    hand_over([workspace / "results", workspace / "replaced", workspace / "never made"], workspace)
    assert {path.stat().st_uid for path in (outside, outside / "file")} == {os.geteuid()}
    ours = [workspace / "results", workspace / "results" / "file", *links]
    assert {path.lstat().st_uid for path in ours} == {owner}


def test_folders_that_are_missing_are_those_of_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert missing_folders(tmp_path / "a" / "b" / "c", tmp_path) == [tmp_path / "a" / "b" / "c", tmp_path / "a" / "b"]
    assert missing_folders(Path("/no/such/folder"), tmp_path) == []
