"""A server whose code is tuned while it serves; `autotuned tune --follow calls.jsonl` is its companion."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import kernels
import numpy as np

import autotuned


class Handler(BaseHTTPRequestHandler):
    """Answers `GET /512` with what it took to normalize 512 rows, and the config that did it."""

    def do_GET(self) -> None:
        """One request, on a thread of its own."""
        x = np.ones((int(self.path.strip("/")), 64))
        kernels.normalize(x, np.empty_like(x))
        body = json.dumps({"rows_at_a_time": kernels.normalize.best_config.kwargs["rows"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing of requests."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    with autotuned.record("calls.jsonl"), autotuned.refresh(every_s=1.0):
        autotuned.on_event(lambda event: print(event.kind, event.reason, flush=True) if event.kind == "swap" else None)
        server.serve_forever()
