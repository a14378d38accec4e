"""The dialects that there are, and how a file is recognised: by keys that only the files of that tool have (spec.md
1.9).

A dialect's other modules are imported only when there is a file in it.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from keystone_action.errors import UsageError
from keystone_action.spec.loading.discovery import specs_below

if TYPE_CHECKING:
    from keystone_action.spec.loading.spec_source import Translation, TranslationSource

Dialect = Literal["touchstone", "agenticassure"]

_LIBRARIES = Path(__file__).parent / "agenticassure" / "libraries"
_SEARCHED = 1 << 20
"""Bytes of a file in which its keys are looked for when a directory is searched."""
_TOP_KEY = re.compile(rb"^(?:\{\s*)?[\"']?([A-Za-z_][\w-]*)[\"']?\s*:", re.MULTILINE)
_INPUT = re.compile(rb"(?:^|[\s{,])[\"']?input[\"']?\s*:")
_OF_SUITES = {"scenarios", "suite"}
"""Only a suite of AgenticAssure has both keys at its top level."""
_OF_CASES = {"task", "matrix"}
"""Only a case of Touchstone has both keys at its top level, so a case without graders is recognised too."""


def dialect_of(data: Any) -> Dialect | None:
    """The tool whose file this is; None for a Keystone spec and for any other file."""
    if not isinstance(data, dict) or "version" in data:
        return None
    if "graders" in data or data.keys() >= _OF_CASES:
        return "touchstone"
    if data.keys() >= _OF_SUITES or (data and data.keys() <= _OF_SUITES):
        return "agenticassure"
    scenarios = data.get("scenarios")
    if isinstance(scenarios, list) and any(isinstance(item, dict) and "input" in item for item in scenarios):
        return "agenticassure"
    return None


class KnownDialects:
    """What the front doors hand to the loader; see `spec.loading.spec_source.Dialects`."""

    def recognises(self, path: Path) -> bool:
        """Whether the file has the keys of another tool's file. Its text is searched, not parsed, so that a file with
        an error is recognised too."""
        try:
            with path.open("rb") as file:
                text = file.read(_SEARCHED)
        except OSError:
            return False
        keys = {found.decode() for found in _TOP_KEY.findall(text)}
        if not keys or "version" in keys:
            return False
        if "graders" in keys or keys >= _OF_CASES:
            return True
        return keys <= _OF_SUITES or ("scenarios" in keys and ("suite" in keys or bool(_INPUT.search(text))))

    def translate(self, source: TranslationSource) -> Translation | None:
        """By the dialect that the file is written in."""
        dialect = dialect_of(source.merged.data)
        if source.agent is not None and dialect != "agenticassure":
            keystone = "a Keystone spec names its agent itself"
            what = keystone if dialect is None else "a Touchstone case names its harnesses"
            message = f"{source.path}: --agent is for AgenticAssure suites; {what}"
            raise UsageError(message, help="leave --agent out")
        if dialect == "agenticassure":
            from keystone_action.dialects.agenticassure.suite import translate_suite

            return translate_suite(source, _specs_below)
        if dialect == "touchstone":
            from keystone_action.dialects.touchstone.case import translate_case

            return translate_case(source)
        return None

    @staticmethod
    @functools.cache
    def library() -> bytes:
        """The stand-in for the package that adapters and scorers import. Raises OSError when our own files can't be
        read."""
        import io
        import zipfile

        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(_LIBRARIES.rglob("*.py")):
                if path.parent != _LIBRARIES:
                    # A fixed time: equal bytes for equal files.
                    entry = zipfile.ZipInfo(path.relative_to(_LIBRARIES).as_posix())
                    archive.writestr(entry, path.read_bytes())
        return content.getvalue()


DIALECTS = KnownDialects()


@functools.cache
def _specs_below(directory: Path) -> tuple[Path, ...]:
    """All suites and specs in a directory."""
    return tuple(sorted(path.resolve() for path in specs_below(directory, DIALECTS)))
