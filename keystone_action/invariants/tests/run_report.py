"""What programs of ours do inside a process that runs tests: sign their report, and say through which files a test was
left; copied into the sandbox as `keystone_run_report`.

A report is JSON after a first line with its HMAC. The key is nowhere but in the process that writes it.

It runs under the sandbox's python3, so it is written for 3.8.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from typing import Any


def write_signed(path: str, key: bytes, document: dict[str, Any]) -> None:
    """Write a report, signed."""
    content = json.dumps(document).encode()
    with open(path, "wb") as file:
        file.write(hmac.new(key, content, hashlib.sha256).hexdigest().encode() + b"\n" + content)


def files_through(error: Any, workspace: str) -> list[str]:
    """The workspace's files that an exception was raised through, relative to it."""
    prefix = os.path.join(os.path.realpath(workspace), "")
    trace, files = error.__traceback__, []
    while trace is not None:
        name = os.path.realpath(trace.tb_frame.f_code.co_filename)
        if name.startswith(prefix) and name[len(prefix) :] not in files:
            files.append(name[len(prefix) :])
        trace = trace.tb_next
    return files
