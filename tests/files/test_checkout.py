"""The copy of a checkout that scripts on the host read."""

from __future__ import annotations

from pathlib import Path

from keystone_action.files.git.commits import copy_checkout


def test_what_all_may_not_read_is_readable_in_the_copy_and_closed_as_before_in_the_checkout(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "closed").mkdir(parents=True, mode=0o700)
    for name, mode in {"closed/private": 0o600, "open": 0o644, "tool": 0o744, "results": 0o644}.items():
        (source / name).write_text(name)
        (source / name).chmod(mode)
    copy = copy_checkout(source, tmp_path / "place", [source / "results"])
    assert copy.place.stat().st_mode & 0o777 == 0o700  # until it is opened to the users of scripts
    found = {path.relative_to(copy.place).as_posix(): path.stat().st_mode & 0o777 for path in copy.place.rglob("*")}
    assert found == {"closed": 0o755, "closed/private": 0o644, "open": 0o644, "tool": 0o755}
    assert (source / "tool").stat().st_mode & 0o777 == 0o744
    assert copy.secret == (source.resolve() / "results",)
