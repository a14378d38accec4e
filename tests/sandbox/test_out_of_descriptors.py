"""A process that may open no further file says so, and takes nothing of an agent's for missing or unreadable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.process_world import no_descriptor_left

from keystone_action.errors import HarnessError
from keystone_action.files.globs import glob_inside
from keystone_action.files.paths import PathMissing, exists_inside, read_inside
from keystone_action.files.snapshot import snapshot

READERS: dict[str, Callable[[Path], object]] = {
    "snapshot": snapshot,
    "read": lambda root: read_inside(root, "a/b/file"),
    "exists": lambda root: exists_inside(root, "a/b/file"),
    "glob": lambda root: glob_inside(root, "**/file"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_text("x")
    return tmp_path


@pytest.mark.parametrize("free", [0, 1])
@pytest.mark.parametrize("reader", READERS)
def test_it_is_our_error(root: Path, reader: str, free: int) -> None:
    READERS[reader](root)
    with no_descriptor_left(free), pytest.raises(HarnessError, match="Too many open files"):
        READERS[reader](root)


@pytest.mark.parametrize("reader", READERS)
def test_with_descriptors_left_the_same_is_read(root: Path, reader: str) -> None:
    assert READERS[reader](root)
    with no_descriptor_left(8):
        assert READERS[reader](root)


def test_what_is_not_there_is_missing_as_before(root: Path) -> None:
    with pytest.raises(PathMissing):
        read_inside(root, "a/none")
