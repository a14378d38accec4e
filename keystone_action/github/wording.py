"""The engine's errors as a workflow's author reads them: inputs in place of the command line's options, and paths
of the checkout, which has another name on the runner than in our container."""

from __future__ import annotations

import re
from pathlib import Path

from keystone_action.errors import KeystoneError, OutputError, UsageError

_INPUTS = {"output": "output-dir", "param": "params", "sandbox": "sandbox", "tag": "tags"}
_OPTION = re.compile(rf"(?<![\w-])--({'|'.join(_INPUTS)})(?![\w-])")


def in_workflow(error: KeystoneError, workspace: Path) -> str:
    """Message and help, on lines of their own. Errors that may quote the output of a program keep its options."""
    text = "\n".join(filter(None, (error.message, error.help)))
    if isinstance(error, UsageError | OutputError):
        text = _OPTION.sub(lambda match: f"`{_INPUTS[match[1]]}`", text)
    return text.replace(f"{workspace}/", "")
