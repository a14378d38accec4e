"""Reads a page, and prints its own transcript as Touchstone's traces are."""

import json
import sys
import urllib.request

page = urllib.request.urlopen(sys.argv[2], timeout=20).read().decode()
said = {"type": "stop", "payload": {"reason": "end_turn", "final_output": f"{sys.argv[1]} of {page}"}}
print(json.dumps({"seq": 0, "id": "e0", "ts": 0.0, **said}))
