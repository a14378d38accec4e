"""One request to the Messages API."""

import json
import urllib.request


def ask(url, key, model, *messages):
    tools = [{"name": "Book", "input_schema": {"type": "object"}}]
    body = {"model": model, "max_tokens": 100, "messages": messages, "tools": tools}
    headers = {"x-api-key": key, "content-type": "application/json", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(f"{url}/v1/messages", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["content"]


def user(content):
    return {"role": "user", "content": content}
