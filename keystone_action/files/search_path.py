"""Where programs that run as ourselves are looked up."""

from __future__ import annotations

import os

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def own_search_path() -> str:
    """Our PATH without its relative entries (an empty one too means the current directory): some programs are run by us
    where an agent left its files, and `.` would find its `git` there."""
    places = [place for place in os.environ.get("PATH", DEFAULT_PATH).split(":") if place.startswith("/")]
    return ":".join(places) or DEFAULT_PATH
