"""What a commit brings along where only runs leave something: answers of judges, and a link for results."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.repositories import commit, git

from keystone_action.errors import UsageError
from keystone_action.files.git.commits import refuse_committed_link
from keystone_action.gate.base_commit import refuse_committed_answers

BROUGHT: dict[str, str | None] = {"cache/ab/abc.json": '{"score": 1.0, "reason": "kind"}'}


def repository(place: Path, files: dict[str, str | None]) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    git(place, "init", "-q", "-b", "main")
    commit(place, files)
    return place


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def test_of_a_checkout_that_has_a_path(workspace: Path) -> None:
    app = repository(workspace / "app", BROUGHT)
    with pytest.raises(UsageError, match="'app/cache', and the commit has files there"):
        refuse_committed_answers(app / "cache", workspace)
    (app / "other" / "ab").mkdir(parents=True)
    (app / "other" / "ab" / "abc.json").write_text("{}")
    refuse_committed_answers(app / "other", workspace)
    refuse_committed_answers(workspace / "beside", workspace)


def test_in_a_submodule(workspace: Path, tmp_path: Path) -> None:
    repository(workspace, {"a": "1\n"})
    git(workspace, "submodule", "--quiet", "add", repository(tmp_path / "tools", BROUGHT).as_uri(), "tools")
    commit(workspace, {})
    assert (workspace / "tools" / ".git").is_file()
    for cache in ("tools", "tools/cache"):
        with pytest.raises(UsageError, match=f"'{cache}', and the commit has files there"):
            refuse_committed_answers(workspace / cache, workspace)
    refuse_committed_answers(workspace / "tools" / "new", workspace)


def test_below_a_repository_that_a_step_has_put_around_it(workspace: Path) -> None:
    """The nearest one does not hold what the outer one has committed."""
    repository(workspace, {f"app/{name}": text for name, text in BROUGHT.items()})
    git(workspace / "app", "init", "-q")
    with pytest.raises(UsageError, match="'app/cache', and the commit has files there"):
        refuse_committed_answers(workspace / "app" / "cache", workspace)


def test_a_repository_that_does_not_tell_is_believed_nothing(workspace: Path) -> None:
    (workspace / "app" / "cache").mkdir(parents=True)
    (workspace / "app" / ".git").write_text("gitdir: ../gone\n")
    with pytest.raises(UsageError, match=r"whether a commit has files there is not known: .*gone"):
        refuse_committed_answers(workspace / "app" / "cache", workspace)


def test_a_repository_around_the_workspace_is_not_asked(workspace: Path, tmp_path: Path) -> None:
    repository(tmp_path, {f"workspace/{name}": text for name, text in BROUGHT.items()})
    refuse_committed_answers(workspace / "cache", workspace)
    refuse_committed_answers(tmp_path / "elsewhere", workspace)


@pytest.mark.parametrize("output", ["out", "out/today"])
def test_a_link_of_the_commit_for_results_is_refused(workspace: Path, tmp_path: Path, output: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (workspace / "out").symlink_to(tmp_path / "elsewhere")
    repository(workspace, {"a": "1\n"})
    for given in (Path(output), workspace / output):
        with pytest.raises(UsageError, match="out is a link in the repository"):
            refuse_committed_link(workspace, given)


def test_a_link_of_the_user_and_a_folder_are_not(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    repository(workspace, {"a": "1\n", "folder/kept": ""})
    (workspace / "out").symlink_to(tmp_path / "elsewhere")
    for output in ("out", "out/today", "folder", "new"):
        refuse_committed_link(workspace, Path(output))
