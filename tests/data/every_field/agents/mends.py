"""Mends the project, and writes down what it did as Touchstone's traces do."""

import json
import os
import re
import sqlite3
import sys
from pathlib import Path

events = []


def event(type_, **payload):
    number = len(events)
    events.append({"seq": number, "id": f"e{number}", "ts": float(number), "type": type_, "payload": payload})


def call(raw_name, name, kind, **given):
    event("tool_call", tool_call_id=f"c{len(events)}", raw_name=raw_name, name=name, kind=kind, input=given)


assert "Write total()" in sys.stdin.read()
assert sys.argv[1] == "Be brief."
assert Path(os.environ["KEYSTONE_AGENT_DIR"], "mends.py").is_file()
assert Path("notes/style.md").read_text() == "Short sentences.\n"
assert Path("vendored/money/money.txt").read_text() == "stable\n"
assert Path("config/rates/full.json").is_file()
assert (Path("config/limits.ini").stat().st_mode & 0o777) == 0o640

call("read_file", "Read", "read", path="shop/prices.py")
call("edit_file", "Edit", "write", path="shop/prices.py")
Path("shop/prices.py").write_text("def total(prices):\n    return sum(prices)\n")
rows = Path("catalogue/prices.csv").read_text().split()[1:]
installed = Path("/var/lib/dpkg/status").read_text()  # by resources.readable
Path("out").mkdir()
Path("out/report.json").write_text(
    json.dumps(
        {
            "total": sum(int(row.split(",")[1]) for row in rows),
            "region": os.environ["REGION"],
            "installed": re.findall(r"(?m)^Package: (python3.*)$", installed),
        }
    )
)
Path("out/seed.txt").write_text(f"seed {os.environ['KEYSTONE_SEED']} {os.environ['PYTHONHASHSEED']}\n")
with sqlite3.connect("stock.db") as stock:
    stock.execute("UPDATE stock SET pieces = 7 WHERE name = 'plate'")
Path("answer.txt").write_text(f"Mended: total, in {os.environ['CURRENCY']}\n")
event("usage", input_tokens=900, output_tokens=100, cost_usd=0.01)
event("stop", reason="end_turn", final_output="Mended.")
Path("trace.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
