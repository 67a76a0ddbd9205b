"""Receives published results and prints them: `python receiver.py [PORT]`. Ctrl-C ends it.

It listens on 127.0.0.2, because 127.0.0.1 is the sandbox itself for whoever is inside.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer


class Receiver(BaseHTTPRequestHandler):
    received = 0

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print(f"{said['title']}: {said['text']}", flush=True)
        Receiver.received += 1
        answer = f"It is published as number {Receiver.received}.".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing but the results."""


if __name__ == "__main__":
    server = HTTPServer(("127.0.0.2", int(sys.argv[1]) if len(sys.argv) > 1 else 8977), Receiver)
    print(f"results are received on port {server.server_port}", flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()
