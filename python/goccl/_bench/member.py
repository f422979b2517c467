"""A process of a group whose members die and join, see recovery.py.

A launcher starts the first members of an MPI, and those start the others. For other libraries there
is a process that imports what the library needs, once, and forks another one for each byte that it
reads.
"""

from __future__ import annotations

import socket
import time
import traceback
from functools import partial
from typing import Any

import numpy as np

from goccl._ranks import wire
from goccl._ranks.children import fork_on_request
from goccl._ranks.libraries import Unavailable

from .elastic import Elastic, Setup, View, class_of


class _Member:
    """The state of a process between two requests. value: what it adds to each sum."""

    def __init__(self, sock: socket.socket, library: Elastic, elements: int, value: int) -> None:
        self._sock = sock
        self._library = library
        self._buffer = np.empty(elements, np.float32)
        self._value = value
        library.bind(self._buffer)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Does what is asked, up to the first sum in the group that is to come."""
        view = View(**request["view"])
        answer: dict[str, Any] = {}
        match request["do"]:
            case "begin":
                self._library.begin(view)
            case "survive":
                if not self._call_until_failure(request["sum"]):
                    # The sum is there, and nobody was told of the death before.
                    return self._sum_done(request["sum"])
                answer["known"] = time.monotonic_ns()
                self._library.go_on(view)
            case "admit":
                self._library.admit(view)
            case "join":
                answer["begun"] = time.monotonic_ns()
                self._library.join(view, request["handle"])
        self._call()
        return answer | self._sum_done(request["sum"])

    def _call(self) -> None:
        self._buffer.fill(self._value)
        self._library.allreduce()

    def _sum_done(self, wanted: int) -> dict[str, Any]:
        done = time.monotonic_ns()
        return {
            "done": done,
            "wrong": int(np.count_nonzero(self._buffer != wanted)),
            "handle": self._library.handle(),
            "version": self._library.version,
        }

    def _call_until_failure(self, wanted: int) -> bool:
        """Sums over and over until a call fails, or, where it must not, has the sum of those that
        are left. Says whether one has failed."""
        self._call()
        wire.send(self._sock, {})
        try:
            while not (self._library.continues and self._buffer[0] == wanted):
                self._call()
        except self._library.failures:
            return True
        return False


def main(argv: list[str]) -> int:
    """Runs until the coordinator is through with it, or is gone.

    argv: the coordinator's socket, the library's name, and "fork" where processes are to be forked.
    """
    address, name, *forks = argv
    library = class_of(name)
    library.load()
    run = partial(_run, address, library, argv)
    return fork_on_request(name, run) if forks else run()


def _run(address: str, library: type[Elastic], argv: list[str]) -> int:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect("\0" + address)
    try:
        setup, _ = wire.receive(sock)
        member = _Member(
            sock,
            library(Setup(setup["timeout"], [__name__, *argv])),
            setup["elements"],
            setup["value"],
        )
        wire.send(sock, {})
        while True:
            wire.send(sock, member.answer(wire.receive(sock)[0]))
    except EOFError:  # the coordinator is through
        return 0
    except Unavailable as error:
        wire.send(sock, {"unavailable": str(error)})
        return 1
    except Exception as error:
        traceback.print_exc()
        wire.send(sock, {"error": f"{type(error).__name__}: {error}"})
        return 1
