"""The modules of `libraries`, as one file for the end of a search path in a sandbox: a package of the same name that is
installed there comes first."""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path

_FOLDER = Path(__file__).parent / "libraries"


@functools.cache
def library() -> bytes:
    """The archive, which Python imports from. Raises OSError when our own files can't be read."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(_FOLDER.rglob("*.py")):
            if path.parent != _FOLDER:
                # A fixed time: the same bytes for the same files.
                entry = zipfile.ZipInfo(path.relative_to(_FOLDER).as_posix())
                archive.writestr(entry, path.read_bytes())
    return content.getvalue()
