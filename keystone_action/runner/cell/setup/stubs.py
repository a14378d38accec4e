"""Functions of the workspace lose their bodies before the agent starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.errors import HarnessError
from keystone_action.files.paths import PathProblem, read_inside, write_inside
from keystone_action.invariants.own_process import NotFinished, ask_program

if TYPE_CHECKING:
    from keystone_action.spec.loading.run_rules import Stub

SOURCE_LIMIT = 8 << 20
"""Bytes of one source."""
SECONDS = 60.0
_PROGRAM = Path(__file__).with_name("stub_program.py")


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
