"""What a release needs of the tree: one version in all places, and the image's name in action.yml.

Usage: python -m tools.release check VERSION     every place has this version, action.yml still says Dockerfile
       python -m tools.release newest VERSION    of the tags on stdin none is it, nor a later one of its major
       python -m tools.release bump VERSION      writes it to every place
       python -m tools.release pin IMAGE         writes docker://NAME:VERSION@sha256:… to action.yml
       python -m tools.release show VERSION@COMMIT   names that commit wherever the pages show the action
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "keystone-action/keystone-action"
_VERSION = r"[0-9]+\.[0-9]+\.[0-9]+"
_PLACES = {
    "pyproject.toml": r'^version = "(VERSION)"$',
    "keystone_action/__init__.py": r'^__version__ = "(VERSION)"$',
    "uv.lock": r'^name = "keystone-action"\nversion = "(VERSION)"$',
    "docs/command-line.md": r"^    rev: v(VERSION)$",
    ".github/workflows/evaluate.yml": rf"{NAME}(?:/\.github/workflows/evaluate\.yml)?@v(VERSION)$",
}
"""Where the version stands: its file, and what is around it."""
_PAGES = ("README.md", "docs/*.md", "examples/workflows/*.yml")
_MAJOR = rf"({NAME}(?:/\.github/workflows/evaluate\.yml)?@v)[0-9]+\b(?!\.)"
_SHOWN = rf"(uses: {NAME}(?:/\.github/workflows/evaluate\.yml)?)@\S+[^\n]*"
"""A line of the pages that uses the action; what follows its name says how sure that is."""
_DOCKERFILE = re.compile(r"^  image: Dockerfile$", re.MULTILINE)


class ReleaseError(Exception):
    """The tree is not what a release needs; the message says where."""


def check(root: Path, version: str) -> None:
    """Raises ReleaseError unless every place has the version, and action.yml builds the image."""
    _require_version(version)
    for name, pattern in _PLACES.items():
        found = set(re.findall(_around(pattern), (root / name).read_text("utf-8"), re.MULTILINE))
        if found != {version}:
            raise ReleaseError(f"{name} has {', '.join(sorted(found)) or 'no version'}, not {version}; see bump")
    if len(_DOCKERFILE.findall((root / "action.yml").read_text("utf-8"))) != 1:
        raise ReleaseError("action.yml has no line `  image: Dockerfile`; on main it builds the image")


def newest(tags: Iterable[str], version: str) -> None:
    """Raises ReleaseError when the version is among the tags, or the tag of its major would go back by it."""
    _require_version(version)
    released = [_numbers(tag[1:]) for tag in tags if re.fullmatch(f"v{_VERSION}", tag)]
    wanted = _numbers(version)
    if wanted in released:
        raise ReleaseError(f"v{version} is released already; releases are never changed")
    latest = max((one for one in released if one[0] == wanted[0]), default=wanted)
    if latest > wanted:
        shown = ".".join(map(str, latest))
        raise ReleaseError(f"v{shown} is newer than v{version}; the tag v{wanted[0]} would go back")


def bump(root: Path, version: str) -> None:
    """Writes the version to every place, and its major version to the pages that name the action by that."""
    _require_version(version)
    for name, pattern in _PLACES.items():
        path = root / name
        text = path.read_text("utf-8")
        changed = re.sub(_around(pattern), lambda found: found[0].replace(found[1], version), text, flags=re.MULTILINE)
        path.write_text(changed, "utf-8")
    _rewrite_pages(root, _MAJOR, rf"\g<1>{version.partition('.')[0]}")
    check(root, version)


def pin(root: Path, image: str) -> None:
    """Makes action.yml name the image. Raises ReleaseError for one without this tree's version or a digest."""
    match = re.fullmatch(rf"docker://[a-z0-9./-]+:({_VERSION})@sha256:[0-9a-f]{{64}}", image)
    if match is None:
        raise ReleaseError(f"{image} is not docker://NAME:VERSION@sha256:DIGEST")
    check(root, match[1])
    path = root / "action.yml"
    path.write_text(_DOCKERFILE.sub(f"  image: {image}", path.read_text("utf-8")), "utf-8")


def show(root: Path, released: str) -> None:
    """Makes the pages name the action by the commit of a release, as people should. Raises ReleaseError for what is not
    VERSION@COMMIT."""
    version, _, commit = released.partition("@")
    _require_version(version)
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ReleaseError(f"{released} is not VERSION@COMMIT, the commit with its 40 digits")
    _rewrite_pages(root, _SHOWN, rf"\g<1>@{commit} # v{version}")


def _rewrite_pages(root: Path, pattern: str, replacement: str) -> None:
    for page in (path for glob in _PAGES for path in root.glob(glob)):
        page.write_text(re.sub(pattern, replacement, page.read_text("utf-8")), "utf-8")


def _around(pattern: str) -> str:
    return pattern.replace("VERSION", _VERSION)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _require_version(version: str) -> None:
    if not re.fullmatch(_VERSION, version):
        raise ReleaseError(f"{version!r} is not a version; expected three numbers, for example 0.2.0")


def main(arguments: list[str]) -> int:
    commands = {"check": check, "bump": bump, "pin": pin, "show": show}
    if len(arguments) != 2 or arguments[0] not in {*commands, "newest"}:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if arguments[0] == "newest":
            newest(sys.stdin.read().split(), arguments[1])
        else:
            commands[arguments[0]](ROOT, arguments[1])
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
