"""The group of one library, whose members are killed and replaced."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from goccl._ranks import wire
from goccl._ranks.libraries import Library
from goccl._ranks.processes import START_TIMEOUT, Member, Processes

from .elastic import View, class_of


class Crew(Processes):
    """The members of one library's group. Use as a context manager, or call close().

    Each adds a value of its own to a sum, so that the sum tells whose are in it. version: of the
    library.
    """

    def __init__(self, library: Library, ranks: int, elements: int, timeout: float) -> None:
        super().__init__(library)
        self.version = ""
        self._ranks = ranks
        self._elements = elements
        self._timeout = timeout
        self._generation = 0
        self._values: dict[Member, int] = {}
        self._next_value = 1
        self._handle = ""
        self._address = "goccl-bench-" + secrets.token_hex(16)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + self._address)
        self._listener.listen(ranks)
        self._server = class_of(library.name).server()
        self._port = 0  # of the server, for the present membership
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def replace(self, victim: int, delay: float) -> dict[str, float]:
        """Kills a rank that sums with all others, a while after they have begun, and has another
        process join.

        Returns in ms: `known`, from the kill to the end of the last survivor's sum that fails;
        `resumed`, from there to the last one's first sum among the survivors; `total`, both;
        `joined`, from when the newcomer begins to join to the last one's first sum with it.
        """
        times = self._lose(self._members[victim], delay)
        return times | self._gain()

    def close(self) -> None:
        self._listener.close()
        super().close()

    def _start(self) -> None:
        self._spawn("goccl._bench.member", self._address, self.library.name)
        self._fork(self._ranks, more=True)
        for _ in range(self._ranks):
            self._enter()
        self._ask_all("begin", self._members, sum(self._values.values()))
        self._answers(self._members)
        self._note_segments()

    def _enter(self) -> Member:
        """One process more, once it has loaded the library."""
        deadline = time.monotonic() + START_TIMEOUT
        member = self._accept(self._listener, self._ranks, deadline)
        self._values[member] = self._next_value
        self._next_value += 1
        setup = {
            "timeout": self._timeout,
            "elements": self._elements,
            "value": self._values[member],
        }
        wire.send(member.sock, setup)
        self._collect(deadline, [member])
        return member

    def _lose(self, victim: Member, delay: float) -> dict[str, float]:
        survivors = [member for member in self._members if member is not victim]
        total = sum(self._values[member] for member in survivors)
        self._ask_all("survive", survivors, total)
        self._tell(victim, self._request("survive", 0, 0, total))
        self._collect(time.monotonic() + self._timeout)  # all have begun to sum
        time.sleep(delay)
        killed = time.monotonic_ns()
        victim.kill()
        self._drop(victim)
        answers = self._answers(survivors)
        done = max(answer["done"] for answer in answers)
        times = {"total": _ms(killed, done)}
        if all("known" in answer for answer in answers):
            known = max(answer["known"] for answer in answers)
            times |= {"known": _ms(killed, known), "resumed": _ms(known, done)}
        return times

    def _gain(self) -> dict[str, float]:
        members = list(self._members)
        ranks, total = len(members) + 1, sum(self._values.values()) + self._next_value
        if self.library.launcher:  # the members start it
            self._ask_all("admit", members, total, ranks)
            newcomer = self._enter()
        else:
            self._fork(1, more=True)
            newcomer = self._enter()
            self._ask_all("admit", members, total, ranks)
        self._tell(newcomer, self._request("join", ranks - 1, ranks, total))
        answers = self._answers(self._members)
        self._note_segments()
        return {"joined": _ms(answers[-1]["begun"], max(answer["done"] for answer in answers))}

    def _ask_all(self, what: str, members: Sequence[Member], total: int, ranks: int = 0) -> None:
        """Tells members what to do up to the first sum of the next membership, which has this
        total, and as many ranks, or theirs."""
        self._generation += 1
        self._port = self._server.port()
        for rank, member in enumerate(members):
            member.rank = rank
            self._tell(member, self._request(what, rank, ranks or len(members), total))

    def _request(self, what: str, rank: int, ranks: int, total: int) -> dict[str, Any]:
        return {
            "do": what,
            "view": asdict(View(self._generation, self._port, ranks, rank)),
            "sum": total,
            "handle": self._handle,
        }

    def _answers(self, members: Sequence[Member]) -> list[dict[str, Any]]:
        # A sum may take that long on one rank, while the others wait for it twice as long.
        deadline = time.monotonic() + 4 * self._timeout
        answers = [answer for answer, _ in self._collect(deadline, members)]
        self.version, self._handle = answers[0]["version"], answers[0]["handle"]
        if wrong := sum(answer["wrong"] for answer in answers):
            raise self._failure(f"{wrong} elements were wrong")
        return answers

    def _drop(self, member: Member) -> None:
        self._members.remove(member)
        del self._values[member]
        member.close()


def _ms(begun: int, ended: int) -> float:
    return (ended - begun) / 1e6
