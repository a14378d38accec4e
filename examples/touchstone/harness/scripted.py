"""A stand-in for a coding agent, so that the example needs no key: `careful` does the task, `careless` half of it."""

import json
import sys
from pathlib import Path

BODY = {
    "careful": 'return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")',
    "careless": 'return title.lower().replace(" ", "-")',
}
events = []


def event(kind, /, **payload):
    events.append(
        {"seq": len(events), "id": f"e{len(events)}", "ts": float(len(events)), "type": kind, "payload": payload}
    )


def call(name, kind, **arguments):
    event("tool_call", tool_call_id=f"c{len(events)}", raw_name=name, name=name, kind=kind, input=arguments)


source = Path("text.py")
call("Read", "read", path="text.py")
text = source.read_text()
call("Edit", "write", path="text.py")
source.write_text(text.replace("raise NotImplementedError", BODY[sys.argv[1]]))
event("usage", input_tokens=900, output_tokens=100, cost_usd=0.01)
event("stop", reason="end_turn", final_output="slugify() is implemented.")
Path("trace.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
print("slugify() is implemented.")
