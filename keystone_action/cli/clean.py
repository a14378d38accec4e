"""`keystone clean`: removes what runs left that were killed, on the engine, in the temporary directory and in memory.

A run of this machine that is still going is known by its lock, a dead one too. Of others (in a container, on another
machine that uses the same engine) only the age is known: that of the youngest thing they have.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.engine.connect import NoEngine, connect
from keystone_action.errors import HarnessError
from keystone_action.files.removal import remove_tree
from keystone_action.files.temporary import Temporary, find_temporary, remove_temporary
from keystone_action.report.words import count, duration
from keystone_action.sandbox.own_programs import unused_copies
from keystone_action.sandbox.processes.system_v import remove_of_server
from keystone_action.sandbox.users import Users, remove_left_behind
from keystone_action.system.run_lock import RunState, is_on_engine, locked_run, state_of

if TYPE_CHECKING:
    from keystone_action.cli.arguments import CleanArguments
    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.sweep import Leftover

SETUPS_KEPT = 7 * 24 * 3600.0
"""Seconds that the image of a setup may be kept for the next run of the same setup, and a copy of our programs for the
next run from the same installation."""
_DATA_OF_SERVERS = "*/postgres-*/data"
"""Of embedded databases, below the folder of a run."""


def clean(wanted: CleanArguments, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Remove it, telling what in lines. environ: where the engine's address is, and RUNNER_TEMP.

    Raises HarnessError after everything was tried: an engine that refuses, or things that can't be removed. Where no
    engine is, there is nothing to be removed from it.
    """
    places = _places(environ)
    asked, error = _clean_engine(wanted, environ, places, say)
    # The lock of a killed run stays while the engine may have things of it: only it tells that they are nobody's.
    _clean_copies(wanted, say)
    _clean_users(wanted, say)
    _clean_places(wanted, places, say, locks=lambda lock: error is None and (asked or not is_on_engine(lock)))
    if error is not None:
        raise error


def _places(environ: Mapping[str, str]) -> list[Path]:
    """Where runs of this machine keep their locks and directories."""
    named = (tempfile.gettempdir(), environ.get("RUNNER_TEMP", ""))
    return list(dict.fromkeys(Path(name) for name in named if name and os.path.isdir(name)))  # noqa: PTH112


def fate(run_id: str, places: Iterable[Path]) -> RunState:
    """What the locks say of a run."""
    states = {state_of(run_id, place) for place in places}
    return "going" if "going" in states else "dead" if "dead" in states else "unknown"


def choose(
    leftovers: Iterable[Leftover], wanted: CleanArguments, *, now: float, fate: Callable[[str], RunState]
) -> list[Leftover]:
    """Which of these go. now: seconds since the epoch by the engine's clock."""
    known = list(leftovers)
    if wanted.everything or wanted.run_id is not None:
        return known
    youngest: dict[str, float] = {}
    for one in known:
        youngest[one.run_id] = max(youngest.get(one.run_id, 0.0), one.made)

    def goes(run_id: str) -> bool:
        state = fate(run_id)
        return state == "dead" or (state == "unknown" and youngest[run_id] <= now - wanted.older_than)

    gone = {run_id for run_id in youngest if goes(run_id)}
    return [one for one in known if one.run_id in gone]


def _clean_engine(
    wanted: CleanArguments, environ: Mapping[str, str], places: list[Path], say: Callable[[str], None]
) -> tuple[bool, HarnessError | None]:
    """Returns whether there is an engine, and what went wrong."""
    try:
        with closing(connect(environ)) as client:
            problems = _sweep(wanted, client, places, say)
    except NoEngine as error:
        say(f"{error.message}: nothing to remove there")
        return False, None
    except HarnessError as error:
        return True, error
    return True, HarnessError("\n".join(problems)) if problems else None


def _sweep(wanted: CleanArguments, client: EngineClient, places: list[Path], say: Callable[[str], None]) -> list[str]:
    """Returns what can't be removed, as sentences."""
    from keystone_action.engine.sweep import engine_time, find_leftovers, find_setup_images, remove_leftovers

    now = engine_time(client)
    leftovers = find_leftovers(client, wanted.run_id)
    # The locks are looked at after what they are about: a run takes its lock before it makes anything.
    chosen = choose(leftovers, wanted, now=now, fate=partial(fate, places=places))
    kept = {one.run_id for one in leftovers} - {one.run_id for one in chosen}
    if wanted.run_id is None:
        limit = now if wanted.everything else now - SETUPS_KEPT
        chosen += [image for image in find_setup_images(client) if image.made <= limit]
    if wanted.dry_run:
        for one in chosen:
            say(f"would remove {one.kind} {one.name}" + (f" of run {one.run_id}" if one.run_id else ""))
        _say_kept(kept, wanted, say)
        if not chosen:
            say("engine: nothing to remove")
        return []
    swept = asyncio.run(remove_leftovers(client, chosen))
    counts = {
        "container": swept.containers, "network": swept.networks, "volume": swept.volumes, "image": swept.images
    }  # fmt: skip
    removed = [count(number, word) for word, number in counts.items() if number]
    say(f"engine: removed {', '.join(removed)}" if removed else "engine: nothing to remove")
    _say_kept(kept, wanted, say)
    return swept.problems


def _say_kept(kept: set[str], wanted: CleanArguments, say: Callable[[str], None]) -> None:
    if kept:
        what = f"still going, or younger than {duration(wanted.older_than)}"
        say(f"engine: left alone {count(len(kept), 'run')}, {what}: {', '.join(sorted(kept))}")


def _clean_places(
    wanted: CleanArguments, places: list[Path], say: Callable[[str], None], *, locks: Callable[[Path], bool]
) -> None:
    """Raises HarnessError when something stays. locks: whether a lock may go."""
    found = [one for place in places for one in find_temporary(place)]
    chosen = [one for one in _choose(found, wanted, places) if not one.is_lock or locks(one.path)]
    if wanted.dry_run:
        for one in chosen:
            say(f"would remove {'lock' if one.is_lock else 'folder'} {one.path}")
        return
    for data in (data for one in chosen for data in one.path.glob(_DATA_OF_SERVERS)):
        remove_of_server(str(data))
    left = [one for one in chosen if not remove_temporary(one)]
    removed = sum(not one.is_lock for one in chosen if one not in left)
    where = ", ".join(map(str, places))
    say(f"{where}: " + (f"removed {count(removed, 'folder')}" if removed else "nothing to remove"))
    if left:
        raise HarnessError("\n".join(f"{one.path} can't be removed" for one in left))


def _clean_copies(wanted: CleanArguments, say: Callable[[str], None]) -> None:
    if wanted.run_id is not None:
        return
    what = "a copy of programs for the users of sandboxes"
    for copy in unused_copies(0.0 if wanted.everything else SETUPS_KEPT):
        if wanted.dry_run:
            say(f"would remove {copy}, {what}")
            continue
        remove_tree(copy)
        say(f"{copy}, {what}, can't be removed" if copy.exists() else f"removed {copy}, {what}")


def _clean_users(wanted: CleanArguments, say: Callable[[str], None]) -> None:
    """Of users that no run of this machine has: their lease tells, not the age of what they left."""
    if wanted.run_id is not None or os.geteuid() != 0:
        return
    found = remove_left_behind(Users(), dry_run=wanted.dry_run)
    if found:
        who = f"{count(found, 'user')} of sandboxes that were killed"
        what = "in shared memory, System V objects and queues, and the folders for temporary files"
        say(f"{'would remove' if wanted.dry_run else 'removed'} what {who} left {what}")


def _choose(found: list[Temporary], wanted: CleanArguments, places: list[Path]) -> Iterator[Temporary]:
    runs = [run for one in found if one.is_lock and (run := locked_run(one.path))]
    for one in found:
        if wanted.run_id is not None:
            goes = one.is_of(wanted.run_id)
        elif wanted.everything:
            goes = True
        else:
            run = next((run for run in runs if one.is_of(run)), None)
            state = "unknown" if run is None else fate(run, places)
            goes = state == "dead" or (state == "unknown" and one.changed <= time.time() - wanted.older_than)
        if goes:
            yield one
