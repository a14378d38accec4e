"""A small agent: it asks a model, runs the commands that the model wants, and says what came of them. The address of
the model and a key are in its environment, as any client looks them up; here they are Keystone's own."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

TOOL = {
    "name": "bash",
    "description": "Runs a command in the current folder",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


def ask(messages):
    body = {"model": "claude-haiku-4-5", "max_tokens": 1000, "tools": [TOOL], "messages": messages}
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    headers["x-api-key"] = os.environ["ANTHROPIC_API_KEY"]
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)["content"]


def result(call):
    done = subprocess.run(["sh", "-c", call["input"]["command"]], capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr or f"exit code {done.returncode}"
    return {"type": "tool_result", "tool_use_id": call["id"], "content": text}


def main():
    messages = [{"role": "user", "content": os.environ["KEYSTONE_PROMPT"]}]
    while True:
        content = ask(messages)
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            print("".join(block["text"] for block in content if block["type"] == "text"))
            return
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": list(map(result, calls))}]


try:
    main()
except urllib.error.HTTPError as error:
    sys.exit(f"the model refused: {error.read().decode()}")
