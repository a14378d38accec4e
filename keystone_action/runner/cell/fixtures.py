"""What is laid out in a workspace before the agent starts: files of `setup`, `fixtures` in their order (spec 1.3), and
stubs: functions that lose their bodies.

Everything here is done by us, not in a sandbox: a clone may need our network, a script the database's owner.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.errors import HarnessError, KeystoneError
from keystone_action.files.copies import give_to_owner
from keystone_action.files.descent import is_empty
from keystone_action.files.git import commands as git
from keystone_action.files.git import history as git_history
from keystone_action.files.paths import PathProblem, make_directories_inside, read_inside, resolve_inside, write_inside
from keystone_action.files.workspace import copy_tree
from keystone_action.invariants.own_process import NotFinished, ask_program
from keystone_action.services.sql_script import SqlScript
from keystone_action.spec.models.task import AnyFixture, DirectoryFixture, GitRepoFixture, SqlFixture

if TYPE_CHECKING:
    from keystone_action.spec.loading.loaded_spec import Stub
    from keystone_action.spec.models.task import SetupFile

CLONE_TIMEOUT = 600.0
"""Seconds for one clone; the cell's own limit holds besides."""

SOURCE_LIMIT = 8 << 20
"""Bytes of one source that gets stubs."""
SECONDS = 60.0
"""For the program that makes stubs."""
_PROGRAM = Path(__file__).with_name("stub_program.py")
RunSql = Callable[[str, SqlScript], Awaitable[tuple[str, ...]]]
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


async def run_fixtures(
    fixtures: Sequence[AnyFixture],
    *,
    workspace: Path,
    directory: Path,
    withheld: Collection[Path] = (),
    run_sql: RunSql,
    sql_files: Collection[Path] = (),
) -> tuple[str, ...]:
    """Apply interpolated fixtures in order; returns notices (links that dangle, history that was replaced, owners that
    were passed over).

    directory: the spec's. run_sql: given a service's name and a script. sql_files: which scripts may include. What is
    laid out belongs to the owner of the workspace.

    Raises HarnessError that names the fixture by its number and says what went wrong.
    """
    notices: list[str] = []
    for index, fixture in enumerate(fixtures):
        try:
            if isinstance(fixture, GitRepoFixture):
                await _clone(fixture, workspace, directory)
            elif isinstance(fixture, DirectoryFixture):
                notices += await anyio.to_thread.run_sync(_copy, fixture, workspace, directory, withheld)
            else:
                notices += await run_sql(fixture.service, _script(fixture, directory, sql_files))
        except (KeystoneError, git.GitFailed, PathProblem, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            remedy = error.help if isinstance(error, KeystoneError) else ""
            raise HarnessError(f"fixtures[{index}] ({_name_fixture(fixture)}) failed: {reason}", help=remedy) from error
    return tuple(notices)


def _name_fixture(fixture: AnyFixture) -> str:
    if isinstance(fixture, GitRepoFixture):
        return f"git_repo {git.without_credentials(fixture.url)}"
    if isinstance(fixture, SqlFixture):
        return f"sql on {fixture.service}"
    return f"directory {fixture.from_}"


def _script(fixture: SqlFixture, directory: Path, sql_files: Collection[Path]) -> SqlScript:
    includes = frozenset(sql_files)
    if fixture.sql is not None:
        return SqlScript("sql", text=fixture.sql, directory=directory, includes=includes)
    file = str(fixture.file)
    return SqlScript(file, path=directory / file, directory=directory, includes=includes)


def _copy(fixture: DirectoryFixture, workspace: Path, directory: Path, withheld: Collection[Path]) -> tuple[str, ...]:
    target = _free_target(workspace, fixture.to)
    report = copy_tree(directory / fixture.from_, target, withheld=withheld)
    give_to_owner(workspace, target)
    return report.notices


async def _clone(fixture: GitRepoFixture, workspace: Path, directory: Path) -> None:
    target = await anyio.to_thread.run_sync(_free_target, workspace, fixture.path)
    url = _location(fixture.url, directory)
    depth = (f"--depth={fixture.depth}",) if fixture.depth else ()
    branch = (f"--branch={fixture.branch}",) if fixture.branch else ()
    try:
        await _git("clone", "-q", "--template=", *depth, *branch, "--", url, str(target), directory=workspace)
    except git.GitFailed as failed:
        if not (fixture.branch and _COMMIT.fullmatch(fixture.branch) and "not found" in str(failed)):
            raise
        await _clone_commit(url, fixture.branch, depth, target)
    await anyio.to_thread.run_sync(git_history.clean_configuration, target / ".git")
    await anyio.to_thread.run_sync(give_to_owner, workspace, target)


async def _clone_commit(url: str, commit: str, depth: tuple[str, ...], target: Path) -> None:
    """`branch` may name a commit, which `git clone --branch` does not take."""
    # A shortened name can only be told from the whole history.
    wanted = (
        (*depth, "--", url, commit)
        if len(commit) >= 40
        else ("--tags", "--", url, "+refs/heads/*:refs/remotes/origin/*")
    )
    await _git("init", "-q", "--template=", str(target), directory=target.parent)
    await _git("remote", "add", "origin", url, directory=target)
    await _git("fetch", "-q", *wanted, directory=target)
    await _git("checkout", "-q", "--detach", commit, directory=target)


async def _git(*arguments: str, directory: Path) -> None:
    await git.run_cancellable(*arguments, directory=directory, timeout=CLONE_TIMEOUT)


def _location(url: str, directory: Path) -> str:
    """The URL; a path without a scheme is relative to the spec, and becomes `file://` so that `depth` works."""
    if "://" in url or re.match(r"[^/]+:", url):
        return url
    return (directory / url).resolve().as_uri()


def _free_target(workspace: Path, relative: str) -> Path:
    """The empty directory that a fixture goes to, made when it is not there. Raises HarnessError, PathProblem."""
    target = resolve_inside(workspace, relative)
    inside = target.relative_to(workspace).as_posix()
    make_directories_inside(workspace, inside)
    if not stat.S_ISDIR(target.lstat().st_mode):
        raise HarnessError(f"{relative} is not a directory", help="choose a path that does not exist yet")
    if not is_empty(target):
        raise HarnessError(
            f"{relative} in the workspace is not empty",
            help="a fixture needs an empty path: name another one, or leave `workspace` or the earlier fixture out",
        )
    return target


async def write_files(
    files: Sequence[SetupFile], workspace: Path, directory: Path, withheld: Collection[Path] = ()
) -> None:
    """Write the files of `setup` into the workspace. directory: the spec's. Raises HarnessError."""
    for index, file in enumerate(files):
        try:
            await anyio.to_thread.run_sync(_write_file, file, workspace, directory, withheld)
        except (PathProblem, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise HarnessError(f"setup.files[{index}] ({file.path}) can't be written: {reason}") from error


def _write_file(file: SetupFile, workspace: Path, directory: Path, withheld: Collection[Path]) -> None:
    if file.from_ is None:
        write_inside(workspace, file.path, (file.content or "").encode(), file.mode or 0o644)
        return
    source = directory / file.from_
    if source.is_dir():
        make_directories_inside(workspace, file.path)
        target = resolve_inside(workspace, file.path)
        copy_tree(source, target, withheld=withheld)
        give_to_owner(workspace, target)
        return
    mode = stat.S_IMODE(source.stat().st_mode) & 0o777 if file.mode is None else file.mode
    write_inside(workspace, file.path, source.read_bytes(), mode)


async def apply_stubs(stubs: Sequence[Stub], workspace: Path) -> None:
    """Replace the bodies. Raises HarnessError that names the file or function which is not there."""
    by_file: dict[str, list[Stub]] = {}
    for stub in stubs:
        by_file.setdefault(stub.file, []).append(stub)
    questions = []
    for file, wanted in by_file.items():
        source = await anyio.to_thread.run_sync(_read, workspace, file, wanted[0])
        questions.append({"source": source, "functions": list(dict.fromkeys(one.function for one in wanted))})
    try:
        answers = await ask_program(_PROGRAM, questions, timeout=SECONDS)
    except NotFinished as problem:
        raise HarnessError(f"setup.stub: {', '.join(by_file)} can't be looked at: {problem}") from None
    for (file, wanted), answer in zip(by_file.items(), answers, strict=True):
        if "problem" in answer:
            raise HarnessError(f"{wanted[0].where}: setup.stub: {file} can't be stubbed: {answer['problem']}")
        missing = next((one for one in wanted if one.function in answer["missing"]), None)
        if missing is not None:
            raise HarnessError(f"{missing.where}: setup.stub: there is no function '{missing.function}' in {file}")
        await anyio.to_thread.run_sync(_write, workspace, file, answer["source"])


def _read(workspace: Path, file: str, stub: Stub) -> str:
    try:
        return read_inside(workspace, file, limit=SOURCE_LIMIT).decode("utf-8-sig")
    except PathProblem as problem:
        raise HarnessError(f"{stub.where}: setup.stub: {problem}") from None
    except UnicodeDecodeError:
        raise HarnessError(f"{stub.where}: setup.stub: {file} is not UTF-8") from None


def _write(workspace: Path, file: str, source: str) -> None:
    try:
        mode = (workspace / file).stat().st_mode & 0o777
        write_inside(workspace, file, source.encode("utf-8", "surrogatepass"), mode)
    except (PathProblem, OSError) as error:
        raise HarnessError(f"setup.stub: {file} can't be written: {error}") from error
