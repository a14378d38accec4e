"""Reads the audit log of the cell: every response of the API must be JSON with `id` and `status`."""

import json
import sys

context = json.load(sys.stdin)

valid = 0
total = 0
with open(context["audit_log_path"]) as audit:
    for line in audit:
        event = json.loads(line)
        if event["type"] != "http_call":
            continue
        total += 1
        try:
            answer = json.loads(event["details"].get("response_body", ""))
        except json.JSONDecodeError:
            continue
        valid += "id" in answer and "status" in answer

print(
    json.dumps(
        {
            "passed": total > 0 and valid == total,
            "score": valid / total if total else 0,
            "reason": f"{valid}/{total} responses valid",
        }
    )
)
