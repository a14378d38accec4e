"""Fixtures: repositories, directories and scripts, laid out before the agent starts."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from keystone_action.errors import HarnessError, ServiceError
from keystone_action.runner.cell.fixtures import run_fixtures
from keystone_action.services.sql_script import ScriptError, SqlScript
from keystone_action.spec.models.task import Fixture

_FIXTURES: TypeAdapter[Any] = TypeAdapter(list[Fixture])


def _git(directory: Path, *arguments: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    settings = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    done = subprocess.run(
        ["git", *settings, *arguments], cwd=directory, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.workspace = directory / "workspace"
        self.workspace.mkdir()
        self.scripts: list[tuple[str, str]] = []

    def run(self, *documents: Mapping[str, Any], withheld: Collection[Path] = ()) -> tuple[str, ...]:
        async def run_sql(service: str, script: SqlScript) -> tuple[str, ...]:
            try:
                text = script.read_text()
            except ScriptError as error:
                raise ServiceError(error.problem) from None
            self.scripts.append((service, text))
            if "BROKEN" in text:
                raise ServiceError("db said: syntax error", help="mend the script")
            return ()

        fixtures = _FIXTURES.validate_python([dict(document) for document in documents])
        return asyncio.run(
            run_fixtures(
                fixtures, workspace=self.workspace, directory=self.directory, withheld=withheld, run_sql=run_sql
            )
        )

    def names(self, path: str = ".") -> list[str]:
        return sorted(entry.name for entry in (self.workspace / path).iterdir())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    repository = tmp_path / "repository"
    repository.mkdir()
    _git(repository, "init", "-q", "-b", "main")
    for number in range(3):
        (repository / "file").write_text(f"{number}\n")
        _git(repository, "add", "-A")
        _git(repository, "commit", "-q", "-m", f"commit {number}")
    _git(repository, "branch", "old", "HEAD~2")
    _git(repository, "tag", "v1", "HEAD~1")
    return repository


class TestGitRepo:
    def test_a_clone_of_the_default_branch(self, bench: Bench, repository: Path) -> None:
        bench.run({"type": "git_repo", "url": repository.as_uri(), "path": "a/clone"})
        clone = bench.workspace / "a/clone"
        assert (clone / "file").read_text() == "2\n"
        assert _git(clone, "rev-list", "--count", "HEAD") == "3"
        assert _git(clone, "remote", "get-url", "origin") == repository.as_uri()
        assert not (clone / ".git/hooks").exists()

    def test_into_the_workspace_itself(self, bench: Bench, repository: Path) -> None:
        bench.run({"type": "git_repo", "url": repository.as_uri()})
        assert bench.names() == [".git", "file"]

    @pytest.mark.parametrize(("branch", "text"), [("old", "0\n"), ("v1", "1\n")])
    def test_branches_and_tags(self, bench: Bench, repository: Path, branch: str, text: str) -> None:
        bench.run({"type": "git_repo", "url": repository.as_uri(), "branch": branch})
        assert (bench.workspace / "file").read_text() == text

    @pytest.mark.parametrize("length", [40, 10])
    @pytest.mark.parametrize("depth", [None, 1])
    def test_commits(self, bench: Bench, repository: Path, length: int, depth: int | None) -> None:
        commit = _git(repository, "rev-parse", "HEAD~1")
        document = {"type": "git_repo", "url": repository.as_uri(), "branch": commit[:length], "depth": depth}
        bench.run(document)
        assert (bench.workspace / "file").read_text() == "1\n"
        assert _git(bench.workspace, "rev-parse", "HEAD") == commit

    @pytest.mark.parametrize("as_path", [True, False])
    def test_depth_also_holds_for_a_path_relative_to_the_spec(
        self, bench: Bench, repository: Path, as_path: bool
    ) -> None:
        url = "repository" if as_path else repository.as_uri()
        bench.run({"type": "git_repo", "url": url, "depth": 2})
        assert _git(bench.workspace, "rev-list", "--count", "HEAD") == "2"

    def test_a_repository_that_is_not_there(self, bench: Bench) -> None:
        with pytest.raises(
            HarnessError, match=r"fixtures\[0\] \(git_repo file:///nothing\) failed: .*nothing"
        ) as error:
            bench.run({"type": "git_repo", "url": "file:///nothing"})
        assert error.value.exit_code == 3

    def test_a_branch_that_is_not_there(self, bench: Bench, repository: Path) -> None:
        with pytest.raises(HarnessError, match="Remote branch nothing not found"):
            bench.run({"type": "git_repo", "url": repository.as_uri(), "branch": "nothing"})

    def test_no_credential_is_said_or_left(self, bench: Bench) -> None:
        with pytest.raises(HarnessError) as error:
            bench.run({"type": "git_repo", "url": "http://user:pass-word@127.0.0.1:1/x"})
        assert "(git_repo http://127.0.0.1:1/x)" in error.value.message
        assert "pass-word" not in error.value.message

    def test_nothing_of_the_url_is_run(self, bench: Bench, tmp_path: Path) -> None:
        for url in (f"ext::touch {tmp_path}/ran", f"--upload-pack=touch {tmp_path}/ran"):
            with pytest.raises(HarnessError):
                bench.run({"type": "git_repo", "url": url})
        assert not (tmp_path / "ran").exists()

    def test_a_hostile_repository_runs_nothing(self, bench: Bench, repository: Path, tmp_path: Path) -> None:
        hook = repository / ".git/hooks/post-checkout"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        hook.chmod(0o755)
        (repository / ".gitattributes").write_text("* filter=evil\n")
        _git(repository, "add", "-A")
        _git(repository, "commit", "-q", "--no-verify", "-m", "evil")
        bench.run({"type": "git_repo", "url": repository.as_uri()})
        assert (bench.workspace / ".gitattributes").exists()
        assert not (tmp_path / "ran").exists()


class TestDirectory:
    def test_a_copy_without_what_is_withheld(self, bench: Bench) -> None:
        (bench.directory / "data/deep").mkdir(parents=True)
        for name in ("a", "deep/b", "deep/hidden"):
            (bench.directory / "data" / name).touch()
        (bench.directory / "data/out").symlink_to("/etc/hostname")
        notices = bench.run(
            {"type": "directory", "from": "data", "to": "in/put"}, withheld=[bench.directory / "data/deep/hidden"]
        )
        assert (bench.names("in/put"), bench.names("in/put/deep")) == (["a", "deep", "out"], ["b"])
        assert "out" in notices[0]

    def test_one_that_is_not_there(self, bench: Bench) -> None:
        with pytest.raises(HarnessError, match=r"fixtures\[0\] \(directory data\) failed: .*No such file"):
            bench.run({"type": "directory", "from": "data"})


class TestSql:
    def test_texts_and_files_in_order(self, bench: Bench) -> None:
        (bench.directory / "seed.sql").write_text("SELECT 'ü';")
        bench.run(
            {"type": "sql", "service": "db", "sql": "SELECT 1"}, {"type": "sql", "service": "two", "file": "seed.sql"}
        )
        assert bench.scripts == [("db", "SELECT 1"), ("two", "SELECT 'ü';")]

    def test_a_script_that_fails_ends_it(self, bench: Bench) -> None:
        with pytest.raises(HarnessError, match=r"fixtures\[1\] \(sql on db\) failed: db said") as error:
            bench.run(*({"type": "sql", "service": "db", "sql": sql} for sql in ("one", "BROKEN", "three")))
        assert error.value.help == "mend the script"
        assert [script for _, script in bench.scripts] == ["one", "BROKEN"]

    @pytest.mark.parametrize(("content", "said"), [(b"\xff", "seed.sql is not UTF-8"), (None, "No such file")])
    def test_a_file_that_can_not_be_read(self, bench: Bench, content: bytes | None, said: str) -> None:
        if content is not None:
            (bench.directory / "seed.sql").write_bytes(content)
        with pytest.raises(HarnessError, match=said):
            bench.run({"type": "sql", "service": "db", "file": "seed.sql"})


@pytest.mark.parametrize("kind", ["directory", "git_repo"])
def test_a_path_that_is_not_empty_is_refused(bench: Bench, repository: Path, kind: str) -> None:
    document = {"type": "git_repo", "url": repository.as_uri(), "path": "here"}
    if kind == "directory":
        document = {"type": "directory", "from": "repository", "to": "here"}
    (bench.workspace / "here").mkdir()
    (bench.workspace / "here/.hidden").touch()
    with pytest.raises(HarnessError, match="here in the workspace is not empty") as error:
        bench.run(document)
    assert "empty path" in error.value.help
    (bench.workspace / "here/.hidden").unlink()
    bench.run(document)
    assert "file" in bench.names("here")
    with pytest.raises(HarnessError, match=r"fixtures\[0\].*not empty"):
        bench.run(document)


@pytest.mark.parametrize(("link", "said"), [("../outside", "out of the workspace"), ("file", "is not a directory")])
def test_a_path_that_is_no_place_in_the_workspace_is_refused(
    bench: Bench, repository: Path, link: str, said: str
) -> None:
    (bench.directory / "outside").mkdir()
    (bench.workspace / "file").touch()
    (bench.workspace / "link").symlink_to(link)
    with pytest.raises(HarnessError, match=said):
        bench.run({"type": "git_repo", "url": repository.as_uri(), "path": "link"})
    assert not list((bench.directory / "outside").iterdir())


def test_what_is_laid_out_belongs_to_the_workspace_s_owner(bench: Bench, repository: Path) -> None:
    uid = 54321 if os.geteuid() == 0 else os.geteuid()
    os.chown(bench.workspace, uid, -1)
    (bench.directory / "data").mkdir()
    (bench.directory / "data/file").touch()
    bench.run(
        {"type": "git_repo", "url": repository.as_uri(), "path": "a/clone"},
        {"type": "directory", "from": "data", "to": "data"},
    )
    assert {path.lstat().st_uid for path in bench.workspace.rglob("*")} == {uid}
