"""The line between a run and its guardian: JSON objects, one a line, over a stream socket."""

from __future__ import annotations

import json
import select
import socket
import time
from contextlib import suppress
from typing import Any


class Line:
    """JSON lines over a stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""
        self.ended = False

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message; None if there is none in time, or none will come any more."""
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            if self.ended or left_s <= 0 or not select.select([self._socket], [], [], left_s)[0]:
                return None
            try:
                data = self._socket.recv(65536)
            except OSError:
                data = b""
            self.ended = not data
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def send(self, message: dict[str, Any]) -> None:
        """Send, or do nothing if nobody listens any more: the end of the line is seen by ``receive``."""
        with suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        self._socket.close()
