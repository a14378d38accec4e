"""A check of our own: the e-mail and report.json must tell the same numbers.

Keystone hands the context over as JSON on stdin and reads the verdict as JSON from stdout.
"""

import json
import re
import sys
from pathlib import Path


def main():
    context = json.load(sys.stdin)
    report = json.loads((Path(context["workspace_path"]) / "report.json").read_text())
    told = numbers_of_email(context["audit_log_path"])
    written = [report["corrected"], report["added"]]
    passed = told == written
    message = f"report.json says {written}, the e-mail {told} (corrected, added)"
    print(json.dumps({"passed": passed, "score": 1.0 if passed else 0.0, "message": message}))


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
