"""A small OpenAI-compatible server on loopback that serves the tests' tiny model, and fails where it is told to."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stapo_eval.decoding import Decoding
from stapo_eval.engines import Request
from stapo_eval.engines.hf import HfEngine
from stapo_eval.models import find_model

KEY = "sk-for-tests-only"


class Server(ThreadingHTTPServer):
    """`fault` is asked for each chat request, by number and body, for what to do instead of answering (None: answer):
    an int is a status, a pair a status and its message, a string a raw body,
    a float a pause before the answer, "reset" ends the connection. `lists`: whether it has a list of models."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, model: Path | HfEngine, *, name: str = "tiny", key: str = ""):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.engine = model if isinstance(model, HfEngine) else HfEngine(find_model(str(model)), threads=1, rows=1)
        self.name, self.key, self.lists = name, key, True
        self.fault: Callable[[int, dict[str, Any]], object] = lambda number, body: None
        self.lock = threading.Lock()
        self.asked: list[dict[str, Any]] = []
        self.answering: list[tuple[socket.socket, threading.Thread]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        self.answering.append((request, thread))
        thread.start()

    def __enter__(self) -> Server:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        # torch aborts a process that ends while a thread that has used it still lives
        for connection, thread in self.answering:
            with suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=5)
        self.server_close()


GENERATING = threading.Lock()
"""Two servers may have one engine, and a request that a client gave up is answered all the same."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # the client went away, or we did
            self.close_connection = True

    def _send(self, status: int, body: object) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("retry-after-ms", "20")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        if self.server.key and given != f"Bearer {self.server.key}":
            self._send(401, {"error": {"message": f"Incorrect API key provided: {given.removeprefix('Bearer ')}"}})
            return False
        return True

    def do_GET(self) -> None:
        if not self.server.lists:
            self._send(404, {"error": {"message": "Not Found"}})
        elif self._allowed():
            self._send(200, {"data": [{"id": self.server.name, "max_model_len": self.server.engine.context}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        server = self.server
        with server.lock:
            server.asked.append(body)
            number = len(server.asked) - 1
        fault = server.fault(number, body)
        if fault == "reset":
            # unread data and no lingering: the client sees a reset, not an end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        elif isinstance(fault, int | tuple):
            status, said = fault if isinstance(fault, tuple) else (fault, f"told to answer {fault}")
            self._send(status, {"error": {"message": said}})
        elif isinstance(fault, str):
            self._send(200, fault)
        else:
            if isinstance(fault, float):
                time.sleep(fault)
            self._send(*self._generate(body))

    def _generate(self, body: dict[str, Any]) -> tuple[int, object]:
        engine, server = self.server.engine, self.server
        if body["model"] != server.name:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        prompt = tuple(engine.encode(body["messages"][0]["content"]))
        room = engine.context - len(prompt)
        asked = body.get("max_tokens", body.get("max_completion_tokens"))
        if room < 1 or (asked or 0) > room:
            said = f"max_tokens is too large: {asked}. This model's maximum context length is {engine.context} tokens"
            return 400, {"error": {"message": said}}
        cuts = body.get("top_k", -1), body.get("min_p", 0.0)
        decoding = Decoding(body["temperature"], body["top_p"], asked or room, *cuts)
        request = Request("c", "p", 0, body.get("seed", 0), prompt, decoding)
        with GENERATING:
            engine.submit(request)
            while not (finished := engine.poll()):
                pass
        (f,) = finished
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": f.text}, "finish_reason": f.finish_reason}
        if body.get("logprobs"):
            each = (f.logprob_sum or 0.0) / f.response_tokens
            choice["logprobs"] = {"content": [{"token": "?", "logprob": each}] * f.response_tokens}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": f.response_tokens}
        return 200, {"choices": [choice], "usage": usage}
