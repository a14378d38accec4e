"""Asks its model twice; each request has a number that only this run has."""

import json
import os
import secrets

from models import ask, user

url, key = os.environ["ANTHROPIC_BASE_URL"], os.environ["ANTHROPIC_API_KEY"]
first = user(json.dumps({"Book": {"say": "once", "nonce": secrets.token_hex(8)}}))
content = ask(url, key, "claude-opus-4-5", first)
(call,) = (one for one in content if one["type"] == "tool_use")
result = user([{"type": "tool_result", "tool_use_id": call["id"], "content": "booked"}])
last = ask(url, key, "claude-opus-4-5", first, {"role": "assistant", "content": content}, result)
print(f"{call['input']['say']}, {last[0]['text']}")
