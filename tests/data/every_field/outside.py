"""What is outside in these specs: pages at their path, and models that call the tools which the last message names."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GRADE = json.dumps({"reason": "as asked", "score": 0.9, "passed": True})


def messages(body):
    last = body["messages"][-1]["content"]
    if isinstance(last, list) and last[0]["type"] == "text":
        last = last[0]["text"]
    if not body.get("tools"):
        content = [{"type": "text", "text": GRADE}]
    elif isinstance(last, list) and last[0]["type"] == "tool_result":
        content = [{"type": "text", "text": "twice"}]
    else:
        calls = json.loads(last) if last.startswith("{") else {"Book": {"say": "book it"}}
        content = [
            {"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": given} for name, given in calls.items()
        ]
    stop = "tool_use" if content[0]["type"] == "tool_use" else "end_turn"
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None}
    return {**head, "content": content, "stop_reason": stop, "usage": {"input_tokens": 100, "output_tokens": 20}}


def chat(body):
    choice = {"index": 0, "message": {"role": "assistant", "content": GRADE}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1795307363, "model": body["model"]}
    return {**head, "choices": [choice], "usage": usage}


def responses(body):
    text = {"type": "output_text", "text": "Done.", "annotations": []}
    usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    head = {"id": "resp_1", "object": "response", "model": body["model"], "status": "completed", "error": None}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "content": [text]}
    return {**head, "output": [message], "usage": usage}


class Outside(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(f"a{self.path.replace('/', ' ')}", "text/plain")

    def do_POST(self):
        say = {"/v1/messages": messages, "/v1/chat/completions": chat, "/v1/responses": responses}[self.path]
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(json.dumps(say(asked)), "application/json")

    def answer(self, text, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


ThreadingHTTPServer(("", 8000), Outside).serve_forever()
