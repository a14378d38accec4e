"""A check of our own: the e-mail and report.json must tell the same numbers.

Keystone hands the context over as JSON on stdin and reads the verdict as JSON from stdout.
"""

import json
import re
import sys
from pathlib import Path


def main():
    context = json.load(sys.stdin)
    told = numbers_of_email(context["audit_log_path"])
    written = numbers_of_report(Path(context["workspace_path"]) / "report.json")
    passed = told == written is not None
    reason = f"report.json says {written}, the e-mail {told} (corrected, added)"
    print(json.dumps({"passed": passed, "score": 1.0 if passed else 0.0, "reason": reason}))


def numbers_of_report(path):
    """What the agent wrote; None where that is no such report. A script that breaks would be an error of the check,
    and nobody would know that the agent left nothing."""
    try:
        report = json.loads(path.read_text())
        return [report["corrected"], report["added"]]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def numbers_of_email(audit_log):
    """What the last e-mail says; the audit log has a line for each request that reached a mock."""
    bodies = [
        json.loads(entry["details"]["request_body"])["body"]
        for entry in map(json.loads, Path(audit_log).read_text().splitlines())
        if entry["type"] == "http_call" and entry["details"]["method"] == "POST"
    ]
    found = re.search(r"corrected (\d+) .* added (\d+)", bodies[-1]) if bodies else None
    return [int(number) for number in found.groups()] if found else None


if __name__ == "__main__":
    main()
