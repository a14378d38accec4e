"""Compares the agent's summary.json with the orders it was given."""

import json
import pathlib
import sys

context = json.load(sys.stdin)
workspace = pathlib.Path(context["workspace_path"])
# The orders are the task's, not the agent's: they are repeated here, where it can't change them.
expected = {"orders": 3, "total": 24900 + 8050 + 1250}

try:
    found = json.loads((workspace / "summary.json").read_text())
except (OSError, ValueError) as error:
    found = f"no readable summary.json: {error}"

print(json.dumps({"passed": found == expected, "reason": f"expected {expected}, found {found}"}))
