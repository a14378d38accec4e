"""Whether the scorers of an author's that specs name are there, found out before any agent starts: which ones there are
is only known by importing their modules, which happens in a sandbox, never here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from keystone_action.runner.roots import make_readable
from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError, listing, nearest, show_value
from keystone_action.system.command import CommandLimits

if TYPE_CHECKING:
    from pathlib import Path

    from keystone_action.runner.engine import Facilities
    from keystone_action.spec.loading.loaded_spec import LoadedSpec, OwnScorers
    from keystone_action.spec.plan import Plan

_SECONDS = 60.0
"""For the import of a suite's modules."""


async def check_scorers(specs: Sequence[LoadedSpec], planned: Plan, facilities: Facilities) -> None:
    """Refuse suites with a scorer that none of their modules registers, or with one in the place of a built-in one.

    Raises SpecError with every such name, SandboxError.

    Modules that can't be imported are an adapter that raises, which the cells tell; suites that run in containers have
    other packages there, and are left to their cells too.
    """
    wanted = {cell.loaded.spec.id for cell in planned.cells} - set(facilities.images)
    suites = [
        (loaded, loaded.own_scorers) for loaded in specs if loaded.spec.id in wanted and loaded.own_scorers is not None
    ]
    if not suites:
        return
    from keystone_action.sandbox.processes import sandboxes as process
    from keystone_action.spec.loading.loaded_spec import enclosing_root

    hidden = sorted({enclosing_root(one) for suite, _ in suites for one in (suite.directory, suite.code_directory)})
    provider = await process.start(hidden=hidden)
    try:
        problems = [
            problem
            for number, (loaded, own) in enumerate(suites)
            for problem in _unknown(
                own, await _read_registered(provider, loaded, own, provider.root / f"suite-{number}")
            )
        ]
    finally:
        with anyio.CancelScope(shield=True):
            await provider.close()
    if problems:
        raise SpecError(problems)


async def _read_registered(provider: Any, loaded: LoadedSpec, own: OwnScorers, place: Path) -> Mapping[str, Any] | None:
    """What the modules of a suite register; None when they can't be asked."""
    from keystone_action.files.workspace import copy_tree
    from keystone_action.invariants.own_scorers import NotAnswered, Scorers, ask_scorer

    workspace, code = place / "workspace", place / "code"

    def lay_out() -> None:
        place.mkdir(mode=0o755)
        place.chmod(0o711)
        workspace.mkdir()
        source = loaded.directory / own.directory
        copy_tree(source, code, withheld=loaded.withheld, ignore=loaded.agent_left_out)
        make_readable(code)

    await anyio.to_thread.run_sync(lay_out)
    sandbox = await provider.open(workspace, limits=CommandLimits(), readable=(code,))
    try:
        order = {"scorer": None}
        scorers = Scorers(own.modules, loaded.library(), directory=str(code))
        answer, _ = await ask_scorer(sandbox, scorers, order, environment=loaded.spec.setup.env, timeout=_SECONDS)
    except NotAnswered:
        return None
    finally:
        await sandbox.close()
    return answer


def _unknown(own: OwnScorers, answer: Mapping[str, Any] | None) -> Iterator[Diagnostic]:
    if answer is None:
        return
    # The modules that were asked have the answer in their hands: what they say is data.
    told = (answer.get(key) for key in ("names", "replaced"))
    names, replaced = ([str(name) for name in one] if isinstance(one, list) else [] for one in told)
    modules = " and ".join(own.modules)
    for name, at in own.places.items():
        if name not in names:
            yield Diagnostic.at(
                at,
                f"unknown scorer {show_value(name)}",
                expected=f"one of {listing(sorted(names))}",
                suggestion=nearest(name, names),
                help=f"{modules} registers no scorer of that name",
            )
        elif name in replaced:
            message = f"{modules} registers another scorer as {show_value(name)}, which is built in"
            yield Diagnostic.at(at, message, help="give it a name of its own")
