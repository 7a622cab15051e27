"""What a test starts in the place of SGLang: answers every path at once, and remembers nothing."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._send({"max_req_input_len": 1000, "max_total_num_tokens": 2048, "arguments": sys.argv[1:]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/generate"):
            meta = {"prompt_tokens": len(json.loads(body)["input_ids"]), "completion_tokens": 1, "cached_tokens": 0}
            event = json.dumps({"text": "", "output_ids": [1], "meta_info": meta})
            self._reply(f"data: {event}\n\ndata: [DONE]\n\n".encode())
        else:
            self._send({"tokens": list(range(50))})

    def _send(self, value: object) -> None:
        self._reply(json.dumps(value).encode())

    def _reply(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    port = int(sys.argv[sys.argv.index("--port") + 1])
    print("stub", *sys.argv[1:], flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
