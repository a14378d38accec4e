"""Certificates of the host, for `setup`: where a proxy opens connections, installers trust it by variables that name
files. A sandbox can't read those below a closed home, so it gets copies, with nothing in them but certificates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from keystone_action.errors import UsageError
from keystone_action.files.descent import read_plain

_VARIABLES = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO", "GIT_SSL_CAPATH",
)  # fmt: skip
_LIST = "SSL_CERT_DIR"
"""Names several folders, with colons between them."""
_LARGEST = 4 << 20
_MOST_FILES = 2000
_CERTIFICATE = re.compile(rb"-----BEGIN ((?:TRUSTED |X509 )?CERTIFICATE)-----[A-Za-z0-9+/=\s]+-----END \1-----")


@dataclass(frozen=True, slots=True)
class Certificates:
    """folders: with the copies; empty without any. variables: the host's, which name the copies."""

    folders: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def copy_certificates(environ: Mapping[str, str], folder: Path) -> Certificates:
    """What the variables of this environment name, copied to a new folder that every user can read. What can't be read,
    or holds no certificate, is left out. Raises OSError for a copy that can't be written."""
    copies: dict[str, Path] = {}
    variables = {}
    for name in _VARIABLES:
        places = environ.get(name, "").split(":") if name == _LIST else [environ.get(name, "")]
        for place in places:
            content = _read(Path(place)) if place and place not in copies else {}
            if content:
                copies[place] = _write(content, folder / str(len(copies)))
        if found := [str(copies[place]) for place in places if place in copies]:
            variables[name] = ":".join(found)
    return Certificates((folder,), variables) if copies else Certificates()


def _read(place: Path) -> dict[str, bytes]:
    """The certificates of a file, under an empty name, or of the files of a folder."""
    try:
        # The system's are links to where a package has them.
        inside = sorted(place.iterdir())[:_MOST_FILES] if place.is_dir() else None
    except (OSError, ValueError):
        return {}
    files = {"": place} if inside is None else {path.name: path for path in inside}
    found = {name: _certificates(file) for name, file in files.items()}
    return {name: content for name, content in found.items() if content}


def _certificates(file: Path) -> bytes:
    try:
        content = read_plain(file.resolve(), _LARGEST)
    except (OSError, ValueError, RuntimeError, UsageError):
        return b""
    return b"".join(match[0] + b"\n" for match in _CERTIFICATE.finditer(content))


def _write(content: Mapping[str, bytes], target: Path) -> Path:
    for folder in (target.parent, *([] if "" in content else [target])):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    for name, certificates in content.items():
        file = target / name
        file.write_bytes(certificates)
        file.chmod(0o644)
    return target
