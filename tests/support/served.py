"""Programs of agents that listen on PORT: one that answers, one that sends what it is told to."""

APP = """
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("")
    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
    def answer(self, body):
        found = {"path": self.path, "method": self.command, "body": body, "items": [1, 2.5, "three"],
                 "token": self.headers.get("X-Token"), "host": self.headers.get("Host")}
        data = json.dumps(found).encode()
        status = int(self.path.strip("/")) if self.path.strip("/").isdigit() else 200
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", "http://elsewhere.example/secret")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""
RAW = """
import os, socket, time, sys
listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
while True:
    connection, _ = listener.accept()
    try:
        connection.recv(65536)
        {serve}
        connection.close()
    except OSError:
        pass
"""
