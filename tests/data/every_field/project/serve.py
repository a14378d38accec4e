"""POST /total answers with the sum of the prices, at the rate that a header names."""

import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer

from shop.prices import total


class Totals(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"total": total(asked["prices"]), "rate": self.headers["X-Rate"]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Totals).serve_forever()
