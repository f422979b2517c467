"""Ranks on several hosts: a ``goccl bench`` for each, started by torchrun or with its variables
set.

Rank 0 runs the bench. Each process starts the one rank of each library that is its own, and does
with it what rank 0 tells it through the store by which the processes have found each other.
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import json
import os
import secrets
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from goccl._ranks.collectives import ROOT, Call
from goccl._ranks.group import RankGroup, Seat
from goccl._ranks.libraries import Library, Unavailable
from goccl._ranks.processes import START_TIMEOUT, GroupFailure
from goccl._ranks.wire import exactly

from .libraries import GOCCL

_JOIN = 300.0  # seconds for all processes to be started
_MARGIN = 30.0  # beyond what an answer may take, for the way there and back
_TOKEN = 16  # bytes
_SAYS = 10.0  # seconds, for who has connected to say who it is


def size() -> int:
    """How many ranks a launcher has started, this process one of them; 1 where none has.

    Raises ValueError where its variables are not such numbers.
    """
    if "RANK" not in os.environ:
        return 1
    ranks, rank = os.environ.get("WORLD_SIZE", "1"), os.environ["RANK"]
    if not (ranks.isdecimal() and rank.isdecimal() and int(rank) < int(ranks)):
        raise ValueError(
            f"RANK is {rank!r} and WORLD_SIZE {ranks!r}: RANK must be a number below WORLD_SIZE"
        )
    return int(ranks)


class World:
    """The processes, one a rank. Use as a context manager; at rank 0 leaving it lets the others
    go."""

    def __init__(self) -> None:
        dist: Any = importlib.import_module("torch.distributed")
        store, self.rank, self.size = next(
            dist.rendezvous("env://", timeout=timedelta(seconds=_JOIN))
        )
        self._store = dist.PrefixStore("goccl-bench", store)
        self._turn = 0
        self._silent: set[int] = set()  # ranks that are not waited for again
        self._host = self._find_host()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        if self.rank == ROOT:
            with contextlib.suppress(OSError):
                self.tell({"do": "leave"})
            self.answers(time.monotonic() + _MARGIN)

    def tell(self, request: Mapping[str, Any]) -> None:
        """Rank 0: tells the others what to do."""
        self._turn += 1
        self._set("request of rank 0", request)

    def hear(self, timeout: float) -> dict[str, Any]:
        """The others: waits for what rank 0 says next."""
        self._turn += 1
        request: dict[str, Any] = self._get("request of rank 0", timeout)
        return request

    def answer(self, answer: Mapping[str, Any]) -> None:
        """The others: tells rank 0 how the last request went."""
        self._set(f"answer of rank {self.rank}", answer)

    def answers(self, deadline: float) -> list[dict[str, Any]]:
        """Rank 0: what the others have answered to the last request. Who says nothing in time has
        failed.

        deadline: by time.monotonic().
        """
        return [self._answer(rank, deadline - time.monotonic()) for rank in range(1, self.size)]

    def seat(self, token: bytes, with_store: bool) -> Seat:
        """This rank's place in a new group. token: is the same at all ranks, and nobody else knows
        it."""
        deadline = time.monotonic() + START_TIMEOUT
        links = self._links(token, deadline)
        if not with_store:
            return Seat(self.rank, None, ("", 0), links, deadline)
        store = self._listen() if self.rank == ROOT else None
        if store:
            self._set("store", store.getsockname()[:2])
        host, port = self._get("store", _left(deadline))
        return Seat(self.rank, store, (host, port), links, deadline)

    def _answer(self, rank: int, timeout: float) -> dict[str, Any]:
        if rank in self._silent:
            return {"failed": f"rank {rank} answers no more"}
        try:
            answer: dict[str, Any] = self._get(f"answer of rank {rank}", timeout)
        except TimeoutError as error:
            self._silent.add(rank)
            return {"failed": str(error)}
        return answer

    def _links(self, token: bytes, deadline: float) -> dict[int, socket.socket]:
        """Connections to all other ranks."""
        links: dict[int, socket.socket] = {}
        with self._listen() as listener:
            self._set(f"link to rank {self.rank}", listener.getsockname()[:2])
            for rank in range(self.rank):
                host, port = self._get(f"link to rank {rank}", _left(deadline))
                links[rank] = socket.create_connection((host, port), _left(deadline))
                links[rank].sendall(token + bytes([self.rank]))
            while absent := [rank for rank in range(self.rank + 1, self.size) if rank not in links]:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"ranks {absent} did not connect in time")
                listener.settimeout(_left(deadline))
                try:
                    link, _ = listener.accept()
                except TimeoutError:
                    continue
                try:
                    said = exactly(link, _TOKEN + 1, min(deadline, time.monotonic() + _SAYS))
                except (EOFError, OSError):
                    said = b""
                if not secrets.compare_digest(said[:_TOKEN], token):  # a stranger's
                    link.close()
                    continue
                links[said[_TOKEN]] = link
        for link in links.values():
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return links

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        return socket.create_server((self._host, 0), family=family, backlog=self.size)

    def _find_host(self) -> str:
        """This process's address for the others: of the way to rank 0, or at rank 0 to the last
        rank."""
        if self.rank == ROOT:
            host = _way_to(self._get(f"host of rank {self.size - 1}", _JOIN))
            self._set("host of rank 0", host)
            return host
        host = _way_to(os.environ["MASTER_ADDR"])
        self._set(f"host of rank {self.rank}", host)
        # Loopback is rank 0's own host, which others may know by another address.
        return (
            self._get("host of rank 0", _JOIN) if ipaddress.ip_address(host).is_loopback else host
        )

    def _set(self, name: str, value: object) -> None:
        try:
            self._store.set(f"{self._turn} {name}", json.dumps(value))
        except RuntimeError as error:  # the store's, of any kind
            raise ConnectionError(f"the {name} cannot be told: {error}") from error

    def _get(self, name: str, timeout: float) -> Any:
        key = f"{self._turn} {name}"
        try:
            self._store.wait([key], timedelta(seconds=max(0.001, timeout)))
            return json.loads(self._store.get(key))
        except RuntimeError as error:  # the store's, of any kind
            raise TimeoutError(f"there was no {name} in {timeout:.0f} s: {error}") from error


def _left(deadline: float) -> float:
    """As a timeout: 0 would mean that nothing is waited for."""
    return max(0.001, deadline - time.monotonic())


def _way_to(host: str) -> str:
    family, kind, protocol, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.connect(address)
        return str(sock.getsockname()[0])


class Part:
    """What one process has of all groups: at most one rank of each library."""

    def __init__(self, world: World, timeout: float) -> None:
        self._world = world
        self._timeout = timeout
        self._libraries: dict[str, Library] = {}
        self._groups: dict[str, RankGroup] = {}

    def start(self, library: Library, _ranks: int, timeout: float) -> HostsGroup:
        """Rank 0: starts the ranks of a library."""
        self._libraries[library.label] = library
        return HostsGroup(self._world, self, library, timeout)

    def serve(self, libraries: Sequence[Library]) -> None:
        """The others: does what rank 0 says until it lets them go. libraries: that it may speak
        of."""
        self._libraries = {library.label: library for library in libraries}
        try:
            while (request := self._world.hear(self._patience()))["do"] != "leave":
                self._world.answer(self.do(request))
            self._world.answer({})
        finally:
            for group in self._groups.values():
                group.close()

    def do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Does it, and says how it went."""
        label = str(request["library"])
        try:
            match request["do"]:
                case "find":
                    self._find(label)
                case "open":
                    self._open(label, bytes.fromhex(request["token"]))
                case "join":
                    group = self._groups[label]
                    group.join()
                    return {"version": group.version, "init_s": group.init_s}
                case "first_call":
                    spent, wrong = self._groups[label].first_call()
                    return {"wrong": wrong, "spent": spent}
                case "pss":
                    return {"pss": self._groups[label].pss()}
                case "prepare":
                    call = Call(**request["call"])
                    self._groups[label].prepare(call, check=request["check"])
                case "block":
                    times, wrong, spent = self._groups[label].block(*request["arguments"])
                    return {"times": times, "wrong": wrong, "spent": spent}
                case "close":
                    if label in self._groups:
                        self._groups.pop(label).close()
        except Unavailable as error:
            return {"unavailable": str(error)}
        except (GroupFailure, OSError) as error:
            return {"failed": f"{error} (of rank {self._world.rank})"}
        return {}

    def _patience(self) -> float:
        """For how long rank 0 may be busy: with an answer of another process, at most."""
        return max(START_TIMEOUT, self._timeout) + 2 * _MARGIN

    def _find(self, label: str) -> Library:
        if label not in self._libraries:
            raise Unavailable(
                f"rank {self._world.rank} does not have it, or was started with other options"
            )
        return self._libraries[label]

    def _open(self, label: str, token: bytes) -> None:
        library = self._find(label)
        seat = self._world.seat(token, with_store=library.name not in (GOCCL["c"], GOCCL["numpy"]))
        try:
            self._groups[label] = RankGroup(library, self._world.size, self._timeout, seat)
        finally:
            for sock in (seat.store, *seat.links.values()):
                if sock:
                    sock.close()


class HostsGroup:
    """The ranks of one library, to a run the same as a RankGroup. Rank 0 has it, and tells the
    others."""

    def __init__(self, world: World, part: Part, library: Library, timeout: float) -> None:
        self._world = world
        self._part = part
        self._library = library
        self._timeout = timeout
        self._all("find", 0)  # else the others would wait for one that takes no seat
        try:
            self._all("open", START_TIMEOUT, token=secrets.token_hex(_TOKEN))
            answers = self._all("join", START_TIMEOUT)
        except BaseException:
            self.close()
            raise
        self.version = str(answers[0]["version"])
        self.init_s = max(float(answer["init_s"]) for answer in answers)

    def prepare(self, call: Call, *, check: bool = True) -> None:
        """As RankGroup.prepare()."""
        self._all("prepare", self._timeout, call=asdict(call), check=check)

    def first_call(self) -> tuple[float, int]:
        """As RankGroup.first_call()."""
        answers = self._all("first_call", self._timeout)
        return max(answer["spent"] for answer in answers), sum(
            answer["wrong"] for answer in answers
        )

    def pss(self) -> float | None:
        """As RankGroup.pss()."""
        all_pss = [answer["pss"] for answer in self._all("pss", self._timeout)]
        return None if None in all_pss else statistics.fmean(all_pss)

    def block(
        self, iterations: int, warmup: int, seed: int, timeout: float
    ) -> tuple[list[int], int, float]:
        """As RankGroup.block()."""
        answers = self._all("block", timeout, arguments=[iterations, warmup, seed, timeout])
        times = [max(ranks) for ranks in zip(*(answer["times"] for answer in answers), strict=True)]
        wrong = sum(answer["wrong"] for answer in answers)
        return times, wrong, max(answer["spent"] for answer in answers)

    def close(self) -> None:
        """As RankGroup.close()."""
        self._ask("close", _MARGIN)

    def _all(self, what: str, timeout: float, **more: object) -> list[dict[str, Any]]:
        """Has all do it; Unavailable or GroupFailure where one could not."""
        answers = self._ask(what, timeout, **more)
        for kind, error in (("failed", GroupFailure), ("unavailable", Unavailable)):
            told = [answer[kind] for answer in answers if kind in answer]
            if told:
                raise error("; ".join(told))
        return answers

    def _ask(self, what: str, timeout: float, **more: object) -> list[dict[str, Any]]:
        request = {"do": what, "library": self._library.label, **more}
        self._world.tell(request)
        # of all, this process's own rank among them
        deadline = time.monotonic() + timeout + _MARGIN
        own = self._part.do(request)
        # Who is waited for in vain is not asked again: all get time, even if the own rank took it
        # all.
        return [own, *self._world.answers(max(deadline, time.monotonic() + _MARGIN))]
