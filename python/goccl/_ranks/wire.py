"""Messages between the coordinator and the ranks: JSON and, with it, raw bytes, over a Unix
socket."""

from __future__ import annotations

import array
import json
import socket
import struct
import time
from typing import Any

_HEADER = struct.Struct("<IQ")
_MAX_JSON = 1 << 20
_MAX_PAYLOAD = 1 << 28


def send(sock: socket.socket, message: dict[str, Any], payload: bytes = b"") -> None:
    """Sends a message; returns when the kernel has it."""
    text = json.dumps(message).encode()
    sock.sendall(_HEADER.pack(len(text), len(payload)) + text + payload)


def receive(sock: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Receives a message. EOFError where the other side has closed, ValueError where it talks
    nonsense."""
    text_size, payload_size = _HEADER.unpack(exactly(sock, _HEADER.size))
    if text_size > _MAX_JSON or payload_size > _MAX_PAYLOAD:
        raise ValueError(f"message of {text_size} + {payload_size} bytes is too long")
    text = exactly(sock, text_size)
    try:
        message = json.loads(text)
    except RecursionError as error:
        raise ValueError("message is nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("message is not an object")
    return message, exactly(sock, payload_size)


def pack_times(nanoseconds: list[int]) -> bytes:
    """Times as the payload of a message."""
    return array.array("q", nanoseconds).tobytes()


def unpack_times(payload: bytes) -> list[int]:
    """The reverse of pack_times()."""
    times = array.array("q")
    times.frombytes(payload)
    return times.tolist()


def exactly(sock: socket.socket, size: int, deadline: float | None = None) -> bytes:
    """Receives so many bytes. EOFError where the other side has closed.

    deadline: by time.monotonic(), until when all must have come, else TimeoutError. Without one
    each part may take as long as the socket's timeout says.
    """
    data = bytearray()
    while len(data) < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{len(data)} of {size} bytes came in time")
            sock.settimeout(left)
        part = sock.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError("connection closed")
        data += part
    return bytes(data)
