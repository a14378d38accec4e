"""Draws Markdown as GitHub shows it, by Chromium: for tests that look at pages, and for the pictures of the README.

GitHub's flavour of Markdown, its published rules for HTML and its style sheet come from npm, at the versions of the
lock file, into a cache outside of the repository.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent
FILES = ("package.json", "package-lock.json", "page.mjs")
BROWSERS = ("chromium", "google-chrome")
"""The one there is; runners of GitHub have the second, which Ubuntu does not package."""
DESKTOP = 804
"""Pixels of a window in which a comment is as wide as on a pull request."""
PHONE = 390


@dataclass(frozen=True, slots=True)
class Page:
    """What to draw. picture: a PNG to write. scale: its pixels for one of the page."""

    text: str
    width: int = DESKTOP
    theme: Literal["light", "dark"] = "light"
    scale: int = 1
    picture: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What is on a page. first: its first line. overflow: pixels by which it is wider than its window; scrolled: the
    same of each table in it. scripts: elements that run, load or ask. asked: addresses that it tried to load."""

    first: str
    overflow: int
    scrolled: tuple[int, ...]
    scripts: int
    alerts: int
    links: tuple[str, ...]
    asked: tuple[str, ...]


def draw(pages: Sequence[Page]) -> list[Seen]:
    """Draws the pages, one after the other in one browser. Raises CalledProcessError; what went wrong is on stderr.

    Raises FileNotFoundError without a browser.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise FileNotFoundError("there is no chromium; run: sudo apt-get install chromium")
    jobs = [{name: value for name, value in asdict(page).items() if value is not None} for page in pages]
    done = subprocess.run(
        ["node", str(_installed() / "page.mjs"), browser],
        input=json.dumps(jobs),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [_seen(one) for one in json.loads(done.stdout)]


def _seen(answer: dict[str, Any]) -> Seen:
    frozen: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in answer.items()
    }
    return Seen(**frozen)


def _installed() -> Path:
    """The folder with the script and what it needs; made once for each content of our files."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in FILES)).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "keystone-action"
    folder = cache / f"github-page-{digest}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=cache))
    try:
        for name in FILES:
            shutil.copy(HERE / name, making)
        subprocess.run(["npm", "ci", "--silent", "--ignore-scripts"], cwd=making, check=True)
        making.chmod(0o755)
        making.rename(folder)
    except OSError:
        if not folder.exists():  # else another process was faster
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder
