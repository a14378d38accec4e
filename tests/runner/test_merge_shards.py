"""Folders of shards as artifacts leave them: found, read with suspicion, joined into one folder of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shard_runs import cell, runs, shards_of, spec, whole

from keystone_action.errors import HarnessError, KeystoneError, OutputError, UsageError
from keystone_action.options.model import Options
from keystone_action.report.write import write_reports
from keystone_action.runner.journal import entries, journal, merge
from keystone_action.runner.journal.earlier_runs import beside_baseline
from keystone_action.runner.journal.entries import JournalEntry
from keystone_action.runner.journal.identity import Identity
from keystone_action.runner.journal.merge import merge_shards
from keystone_action.scoring.document import run_to_document
from keystone_action.scoring.results import RunResult, TraceInfo
from keystone_action.scoring.soundness import baseline_of

RUN = whole([spec("alpha", [cell("alpha", name, 0) for name in ("one", "two", "six", "ten", "low")])])


IDENTITY = Identity({"spec": {"alpha": "a" * 64}})


def leave(folder: Path, run: RunResult) -> Path:
    """What `keystone run --shard` leaves of such a run."""
    folder.mkdir(parents=True)
    entries = [JournalEntry(entry.id, entry.sha256, one) for entry in run.specs for one in entry.cells]
    journal.write_journal(folder, IDENTITY, run.run_id, entries)
    for entry in entries:
        files = folder / "cells" / entry.cell.id
        (files / "checks").mkdir(parents=True)
        (files / "agent.stdout").write_text(f"{entry.cell.id} said")
        (files / "checks" / "holds.log").write_text("a log")
    write_reports(run, folder)
    return folder


@pytest.fixture
def downloaded(tmp_path: Path) -> Path:
    """Three shards, each in the folder of its artifact."""
    for number, shard in enumerate(shards_of(RUN, 3), 1):
        leave(tmp_path / "shards" / f"keystone-shard-{number}", shard)
    return tmp_path / "shards"


def merged(*places: Path, output: Path | None = None, threshold: float | None = None) -> RunResult:
    directory = places[0].parent
    options = Options.of(
        results=places, directory=directory, output=output or directory / "out", threshold=threshold, run_id="whole"
    )
    return merge_shards(options).result


def refused(kind: type[KeystoneError], *places: Path, says: tuple[str, ...]) -> None:
    output = places[0].parent / "out"
    with pytest.raises(kind) as caught:
        merged(*places)
    assert type(caught.value) is kind, caught.value
    assert all(word in caught.value.message for word in says), caught.value.message
    assert not output.exists(), "nothing may look like a result"


def test_one_folder_as_one_run_would_have_left_it(downloaded: Path) -> None:
    run = merged(downloaded)
    assert run_to_document(run) == run_to_document(RUN)
    out = downloaded.parent / "out"
    cells = [one.id for one in RUN.specs[0].cells]
    assert [entry.cell.id for entry in entries.read_journal(out).entries] == cells
    assert sorted(path.name for path in (out / "cells").iterdir()) == sorted(cells)
    assert (out / "cells" / cells[4] / "agent.stdout").read_text() == f"{cells[4]} said"
    assert (out / "cells" / cells[4] / "checks" / "holds.log").read_text() == "a log"


@settings(max_examples=20)
@given(run=runs(), count=st.integers(1, 5))
def test_on_disk_too_joined_shards_are_the_run_that_was_split(
    tmp_path_factory: pytest.TempPathFactory, run: RunResult, count: int
) -> None:
    top = tmp_path_factory.mktemp("split") / "shards"
    for number, shard in enumerate(shards_of(run, count), 1):
        leave(top / f"artifact-{count - number}", shard)
    assert run_to_document(merged(top)) == run_to_document(run)


def test_folders_may_be_named_one_by_one_or_lie_deeper(downloaded: Path) -> None:
    """An artifact of several paths keeps the folder's name inside; one that was named lies directly in its place."""
    deeper = downloaded.parent / "deeper" / "artifact" / "keystone-results"
    deeper.parent.mkdir(parents=True)
    (downloaded / "keystone-shard-3").rename(deeper)
    folders = [downloaded / "keystone-shard-1", downloaded / "keystone-shard-2", downloaded.parent / "deeper"]
    assert run_to_document(merged(*folders)) == run_to_document(RUN)


def test_a_folder_named_twice_counts_once(downloaded: Path) -> None:
    assert merged(downloaded, downloaded / "keystone-shard-1").counts["cells"] == 5


def test_earlier_runs_in_hidden_folders_are_not_looked_at(downloaded: Path) -> None:
    leave(downloaded / ".keystone" / "runs" / "earlier", RUN)
    assert merged(downloaded).counts["cells"] == 5


def test_results_of_one_run_alone_are_all_of_it(tmp_path: Path) -> None:
    assert run_to_document(merged(leave(tmp_path / "only", RUN))) == run_to_document(RUN)


def test_joined_results_can_be_resumed_and_joined_again(downloaded: Path) -> None:
    run = merged(downloaded)
    out = downloaded.parent / "out"
    write_reports(run, out)
    again = merged(out, output=downloaded.parent / "again")
    assert run_to_document(again) == run_to_document(RUN)


def test_the_threshold_that_is_given_must_be_the_shards(downloaded: Path) -> None:
    with pytest.raises(UsageError, match=r"threshold 0\.9 is given, but the shards judged alpha by 0\.5"):
        merged(downloaded, threshold=0.9)
    assert merged(downloaded, threshold=0.5).verdict == "pass"


@pytest.mark.parametrize(("on_skip", "refused"), [(None, True), ("error", True), ("ignore", False)])
def test_a_skip_that_must_fail_has_to_fail_where_it_happens(tmp_path: Path, on_skip: Any, refused: bool) -> None:
    one = cell("alpha", "one", 0, skipped=True)
    checks = (one.invariants[0], replace(one.invariants[1], on_skip=on_skip))
    folder = leave(tmp_path / "shards", whole([spec("alpha", [replace(one, invariants=checks)])]))
    strict = Options.of(results=(folder,), directory=tmp_path, output=tmp_path / "out", fail_on_skipped=True)
    if refused:
        with pytest.raises(UsageError, match=r"the shards let alpha\.one\.r0 pass without judged"):
            merge_shards(strict)
    else:
        assert merge_shards(strict).result.verdict == "pass"


@pytest.mark.parametrize(("fit", "said"), [("stale", "the replay was stale: request 3"), ("changed", "touched")])
def test_a_replay_that_must_fail_has_to_fail_where_it_happens(tmp_path: Path, fit: Any, said: str) -> None:
    trace = TraceInfo("gateway", fit, "2026-11-20T10:00:00Z", "request 3")
    folder = leave(tmp_path / "shards", whole([spec("alpha", [replace(cell("alpha", "one", 0), trace=trace)])]))
    lenient = Options.of(results=(folder,), directory=tmp_path, output=tmp_path / "lenient")
    assert merge_shards(lenient).result.verdict == "pass"
    with pytest.raises(UsageError, match=rf"the shards let alpha\.one\.r0 pass: .*{said}"):
        merge_shards(lenient.having(output=tmp_path / "strict", fail_on_stale=True))


@pytest.mark.parametrize(("chosen", "change"), [((), "gone"), (("tag smoke",), None)])
def test_beside_a_baseline_what_was_not_chosen_is_not_gone(
    tmp_path: Path, chosen: tuple[str, ...], change: str | None
) -> None:
    """Joined shards say what one run with the same tags says."""
    some = whole([spec("alpha", [cell("alpha", "one", 0), cell("alpha", "two", 0)])])
    assert some.plan is not None
    run = replace(some, plan=replace(some.plan, chosen=chosen))
    baseline = baseline_of(RUN, "before")
    for number, shard in enumerate(shards_of(run, 2)):
        leave(tmp_path / "shards" / f"artifact-{number}", shard)
    options = Options.of(
        results=(tmp_path / "shards",),
        directory=tmp_path,
        output=tmp_path / "out",
        run_id="whole",
        baseline_run=baseline,
    )
    joined = merge_shards(options).result
    assert run_to_document(joined) == run_to_document(beside_baseline(run, baseline))
    assert joined.baseline is not None
    assert {one.change for one in joined.baseline.groups} == ({change} if change else set())


def test_logs_of_services_are_kept_by_shard(downloaded: Path) -> None:
    for number in (1, 2):
        logs = downloaded / f"keystone-shard-{number}" / "services"
        logs.mkdir()
        (logs / "db.log").write_text(f"of {number}")
    merged(downloaded)
    services = downloaded.parent / "out" / "services"
    assert (services / "shard-2-of-3" / "db.log").read_text() == "of 2"
    assert sorted(path.name for path in services.iterdir()) == ["shard-1-of-3", "shard-2-of-3"]


def test_results_are_never_mixed(downloaded: Path) -> None:
    leave(downloaded.parent / "out", RUN)
    with pytest.raises(UsageError, match="already holds results"):
        merged(downloaded)


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    refused(UsageError, tmp_path / "nowhere", says=(f"there is no folder {tmp_path / 'nowhere'}",))
    (tmp_path / "file").touch()
    refused(UsageError, tmp_path / "file", says=("file is not a folder",))


def test_a_place_without_results(downloaded: Path) -> None:
    """An artifact that was never uploaded leaves an empty folder, beside others or alone."""
    empty = downloaded.parent / "empty"
    (empty / "artifact").mkdir(parents=True)
    refused(UsageError, empty, says=("there are no results in", "empty"))
    refused(UsageError, downloaded, empty, says=("there are no results in", "empty"))


def test_a_missing_shard_is_named(downloaded: Path) -> None:
    (downloaded / "keystone-shard-2").rename(downloaded.parent / "aside")
    refused(HarnessError, downloaded, says=("missing: shard 2/3 (found: 1/3, 3/3)",))


def test_a_shard_given_twice(downloaded: Path) -> None:
    leave(downloaded / "second-attempt", shards_of(RUN, 3)[1])
    says = ("shard 2/3 is given twice", "keystone-shard-2", "second-attempt")
    refused(UsageError, downloaded, says=says)


def test_a_killed_shard_has_a_journal_without_results(downloaded: Path) -> None:
    (downloaded / "keystone-shard-2" / "results.json").unlink()
    refused(HarnessError, downloaded, says=("keystone-shard-2 has a journal, but no results.json", "killed"))


def test_results_without_a_journal(downloaded: Path) -> None:
    (downloaded / "keystone-shard-2" / "journal.jsonl").unlink()
    refused(HarnessError, downloaded, says=("keystone-shard-2 has results.json, but no journal.jsonl",))


def rewritten(change: Callable[[bytes], bytes], name: str) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return rewrite


def linked(folder: Path) -> None:
    real = folder.parent.parent / "elsewhere.json"
    (folder / "results.json").rename(real)
    (folder / "results.json").symlink_to(real)


def fifo(folder: Path) -> None:
    (folder / "results.json").unlink()
    os.mkfifo(folder / "results.json")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (rewritten(lambda data: data[:-9], "journal.jsonl"), "journal.jsonl is cut: its last line has no end"),
        (rewritten(lambda data: data + b'{"spec": "al', "journal.jsonl"), "journal.jsonl is cut: its last line"),
        (
            rewritten(lambda data: data[: data.index(b"\n") + 1], "journal.jsonl"),
            "journal.jsonl is cut: it lacks cells",
        ),
        (rewritten(lambda _: b"", "journal.jsonl"), "journal.jsonl is cut: it lacks cells"),
        (rewritten(lambda data: b"nonsense\n" + data, "journal.jsonl"), "does not begin with the run's identity"),
        (rewritten(lambda data: data + b"nonsense\n", "journal.jsonl"), "journal.jsonl:4 is not a line of a journal"),
        (rewritten(lambda data: data + b"[" * 200_000 + b"\n", "journal.jsonl"), "journal.jsonl:4 is not a line"),
        (rewritten(lambda data: data.replace(b'"pass"', b'"fail"', 1), "journal.jsonl"), "contradict each other"),
        (rewritten(lambda data: data.replace(b'"sha256": "a', b'"sha256": "b'), "journal.jsonl"), "contradict"),
        (rewritten(lambda data: data[:-40], "results.json"), "results.json is not a JSON document"),
        (rewritten(lambda _: b"[" * 200_000, "results.json"), "results.json is not a JSON document"),
        (rewritten(lambda _: b"\xff\xfe{", "results.json"), "results.json is not a JSON document"),
        (rewritten(lambda _: b"[]", "results.json"), "results.json holds no results"),
        (rewritten(lambda data: data.replace(b'"verdict": "pass"', b'"verdict": "fine"'), "results.json"), "verdict"),
        (rewritten(lambda data: data.replace(b'"composite": 1.0', b'"composite": NaN'), "results.json"), "not JSON"),
        (linked, "results.json can't be read"),
        (fifo, "results.json is not a regular file"),
    ],
)
def test_damaged_results(downloaded: Path, damage: Callable[[Path], None], says: str) -> None:
    damage(downloaded / "keystone-shard-2")
    refused(HarnessError, downloaded, says=("keystone-shard-2", says))


def test_results_of_another_format(downloaded: Path) -> None:
    rewrite = rewritten(lambda data: data.replace(b'"schema_version": 1', b'"schema_version": 2'), "results.json")
    rewrite(downloaded / "keystone-shard-2")
    refused(UsageError, downloaded, says=("keystone-shard-2", "schema_version: expected 1, found 2"))


def test_the_later_of_a_cell_that_was_tried_again_counts(tmp_path: Path) -> None:
    """`--resume` runs cells in error again, and writes another line."""
    folder = leave(tmp_path / "shards", RUN)
    lines = (folder / "journal.jsonl").read_bytes()
    identity, first = lines.splitlines(keepends=True)[:2]
    earlier = (
        json.dumps({**json.loads(first), "verdict": "error", "composite": None, "error": "no room"}).encode() + b"\n"
    )
    (folder / "journal.jsonl").write_bytes(identity + earlier + lines.removeprefix(identity))
    assert merged(folder).verdict == "pass"
    (folder / "journal.jsonl").write_bytes(lines + earlier)
    with pytest.raises(HarnessError, match="contradict"):
        merged(folder, output=tmp_path / "other")


def test_what_is_no_plain_file_is_left_out_and_said(downloaded: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the machine that joins")
    files = downloaded / "keystone-shard-1" / "cells" / "alpha.one.r0"
    (files / "link").symlink_to(secret)
    (files / "folder").symlink_to(tmp_path)
    os.mkfifo(files / "fifo")
    other = downloaded / "keystone-shard-2"
    (other / "cells").rename(tmp_path / "cells-of-2")
    (other / "cells").symlink_to(tmp_path / "cells-of-2")
    third = downloaded / "keystone-shard-3" / "cells" / "alpha.six.r0"
    third.rename(tmp_path / "cell-of-3")
    third.symlink_to(tmp_path / "cell-of-3")
    run = merged(downloaded)
    out = tmp_path / "out"
    assert sorted(path.name for path in (out / "cells" / "alpha.one.r0").iterdir()) == ["agent.stdout", "checks"]
    assert not [path for path in out.rglob("*") if path.is_symlink() or "of the machine" in str(path)]
    assert {path.name for path in (out / "cells").iterdir()} == {"alpha.one.r0", "alpha.ten.r0"}
    assert run.notices == ("5 of the shards' files were left out: no plain files, not readable, or too large",)
    assert run_to_document(replace(run, notices=())) == run_to_document(RUN)


def test_what_is_copied_and_read_is_bounded(downloaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "COPIED_FILE_LIMIT", 100)
    large = downloaded / "keystone-shard-1" / "cells" / "alpha.one.r0" / "diff.patch"
    large.write_bytes(b"x" * 101)
    assert merged(downloaded).notices[0].startswith("1 of the shards' files")
    monkeypatch.setattr(merge, "COPIED_ENTRIES_LIMIT", 6)
    few = downloaded.parent / "few"
    assert "left out" in merged(downloaded, output=few).notices[0]
    assert 0 < len([path for path in few.glob("cells/*/**/*") if path.is_file()]) <= 6
    monkeypatch.setattr(merge, "JOURNAL_LIMIT", 1000)
    with pytest.raises(HarnessError, match="at most 1,000 are read"):
        merged(downloaded, output=downloaded.parent / "none")
    monkeypatch.setattr(merge, "_FOLDERS_LIMIT", 3)
    with pytest.raises(UsageError, match="more than 3 folders"):
        merged(downloaded, output=downloaded.parent / "none")


def test_files_of_cells_that_are_not_the_shards_are_left_alone(downloaded: Path) -> None:
    """Only ids that the results have name folders of ours."""
    strange = downloaded / "keystone-shard-1" / "cells" / "alpha.two.r0"
    strange.mkdir()
    (strange / "agent.stdout").write_text("not what shard 2 has")
    merged(downloaded)
    text = (downloaded.parent / "out" / "cells" / "alpha.two.r0" / "agent.stdout").read_text()
    assert text == "alpha.two.r0 said"


def test_an_output_that_cannot_be_written(downloaded: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="can't be written"):
        merged(downloaded, output=tmp_path / "file" / "out")
