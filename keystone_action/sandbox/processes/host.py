"""What the author's own scripts have on the host that an agent's processes don't: our PATH and what it leads to."""

from __future__ import annotations

from pathlib import Path

from keystone_action.files.search_path import own_search_path

_LIBRARIES = ("lib", "libexec")
"""Beside a `bin`, what the programs in it load."""

_SWITCHES = {
    # The working directory is full of what an agent wrote: no interpreter takes a module from there by itself.
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "PERL_USE_UNSAFE_INC": "0",
    # The copy of the checkout belongs to us, not to the user that reads it.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


def environment() -> dict[str, str]:
    """Of a script on the host, all of it but HOME, TMPDIR and LANG."""
    return {"PATH": own_search_path(), **_SWITCHES}


def programs() -> list[Path]:
    """The directories that PATH names, and the libraries beside them, without those that hold our home directory."""
    found: list[Path] = []
    home = Path("~").expanduser().resolve()
    for name in own_search_path().split(":"):
        place = Path(name)
        if home.is_relative_to(place.resolve()):
            continue
        found.append(place)
        if place.name == "bin":
            found += [place.parent / library for library in _LIBRARIES]
    return found
