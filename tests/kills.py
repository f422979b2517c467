"""Processes that are killed, stopped and replaced while they work: ``python kills.py SEED...``

Each seed is a schedule. Two to six light processes, ranks of one communicator through the C ABI,
run a program of collectives with known answers. Every member chooses the same next step, because it
draws it from the seed, the epoch and the number of the step. In the same way it finds out whether
it is to die there, when, and how. The supervisor, a process for each seed, starts newcomers in
place of the dead. It hears what the ranks report, and holds it against what must be.

Ranks of several hosts take part where ``python kills.py SEED... --hosts N`` runs on one of these,
and ``python kills.py --host NAME``, with the name of that one, on N of them.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import functools
import importlib.util
import itertools
import json
import os
import random
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Looked up without torch, which the package imports.
LIBRARY = Path(importlib.util.find_spec("goccl").origin).parent / "lib/libgoccl.so.0"

KINDS = (
    *("OK", "INVALID_ARGUMENT", "INVALID_HANDLE", "TIMEOUT", "ABORTED", "PEER_FAILED", "MISMATCH"),
    *("UNSUPPORTED", "FORKED", "SYSTEM", "INTERNAL", "IN_PROGRESS", "REVOKED", "NO_QUORUM"),
    "EXCLUDED",
)
# After these the members call goccl_comm_recover().
MENDED = {"TIMEOUT", "ABORTED", "PEER_FAILED", "MISMATCH", "REVOKED"}

INT64, FLOAT32 = 6, 10
SUM, MAX = 0, 4
PERIOD = 8  # floats after which an input repeats itself
MOST = 14  # processes of a schedule
DEADLINE = 35.0  # of a schedule, in seconds
PORT = 29600  # where the supervisor waits for hosts
SHAREABLE = 1 << 17  # bytes: as long as this a buffer may be shareable
# How many seconds a call may wait where nobody is stopped. One that joins waits for the members to
# come to the step that lets it in; what waits in vain waits for half of the timeout.
SLOW, SLOW_JOIN = 3.0, 9.0


class Config(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("rank", ctypes.c_int),
        ("size", ctypes.c_int),
        ("unique_id", ctypes.c_char_p),
        ("store", ctypes.c_void_p),
        ("group_name", ctypes.c_char_p),
        ("timeout_ms", ctypes.c_int64),
        ("liveness_grace_ms", ctypes.c_int64),
        ("transport", ctypes.c_char_p),
    )


NEED = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64),
    *(ctypes.c_void_p, ctypes.c_size_t),
)


class Feed(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("context", ctypes.c_void_p),
        ("need", NEED),
        ("final", ctypes.c_void_p),
    )


class Call(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("timeout_ms", ctypes.c_int64),
        ("wait_soon", ctypes.c_int),
        ("alltoall_schedule", ctypes.c_char_p),
        ("sequence", ctypes.c_void_p),
        ("contributors", ctypes.c_void_p),
        ("program", ctypes.c_int),
        ("feed", ctypes.POINTER(Feed)),
    )


class ChannelConfig(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("kind", ctypes.c_char_p))


def memories_at(memories: Any, rank: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(memories[rank])


class Member(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("process", ctypes.c_uint64),
        ("pid", ctypes.c_int64),
        ("host", ctypes.c_char * 256),
    )


class Failed(Exception):
    """A call has not returned GOCCL_OK."""

    def __init__(self, kind: str, call: str, text: str):
        super().__init__(f"{call}: {kind}: {text}")
        self.kind = kind


@dataclass
class Plan:
    """What a seed says of a schedule as a whole."""

    seed: str
    size: int
    transport: str
    stops: bool  # processes are stopped, too: calls time out
    steps: int
    deadly: float  # how likely an epoch has a death
    lasting: bool = False  # one process lives through it all
    pace: float = 1  # so many times as long as elsewhere all takes
    completes: bool = False  # survivors complete collectives

    @property
    def timeout(self) -> float:
        return 2.0 * self.pace if self.stops else 20.0

    @staticmethod
    def of(seed: int, lasting: int, transport: str, pace: float, completes: bool) -> Plan:
        draw = random.Random(seed)
        if completes:
            size, drawn = draw.randint(2, 6), draw.choice(["shm", "tcp"])
            return Plan(str(seed), size, transport or drawn, False, 60, 0.02, False, pace, True)
        if lasting:
            transport = transport or ["shm", "tcp"][seed % 2]
            return Plan(str(seed), 3, transport, False, 5 * lasting, 1.0, True, pace)
        stops = draw.random() < 0.12
        size, drawn = draw.randint(2, 6), draw.choice(["shm", "tcp"])
        return Plan(
            str(seed),
            size,
            transport or drawn,
            stops,
            draw.randint(8, 16) if stops else draw.randint(20, 50),
            draw.choice([0.6, 0.9, 1.0]),
            pace=pace,
        )


@dataclass
class Death:
    """How an epoch ends for some of its members."""

    victims: set[int]
    when: str
    how: str
    step: int
    delays: dict[int, float]


WHENS = ("before", "idle", "in", "recover", "recover", "after", "agree", "grow", "shrink")
HOWS = ("kill", "kill", "segv", "exit")


def death(plan: Plan, key: str, size: int, newcomers: int) -> Death | None:
    draw = random.Random(f"{plan.seed} {key} death")
    if draw.random() >= plan.deadly:
        return None
    who = draw.choice(["first", "last", "one", "two", "newcomers", "most"])
    everyone = list(range(size))
    victims = {
        "first": everyone[:1],
        "last": everyone[-1:],
        "one": draw.sample(everyone, 1),
        "two": draw.sample(everyone, min(2, size - 1)),
        "newcomers": everyone[size - newcomers :],
        "most": draw.sample(everyone, size - 1),
    }[who]
    if plan.lasting:
        victims = [draw.choice(everyone[1:])] if size > 1 else []
    how = draw.choice(HOWS)
    if plan.stops and draw.random() < 0.6 and size > 1:
        # Mostly those that are left are enough to go on.
        victims, how = [draw.choice(everyone if draw.random() < 0.2 else everyone[1:])], "stop"
    when = draw.choice(WHENS)
    longest = 0.005 if when in ("recover", "grow") else 0.001
    return Death(
        set(victims),
        when,
        how,
        draw.randint(0, 6),
        {rank: draw.random() * longest for rank in everyone},
    )


def action(plan: Plan, key: str, step: int, d: Death | None) -> str:
    by_channels = random.Random(f"{plan.seed} {key} {step} channels").random()
    if d and d.step == step and d.when in ("in", "agree", "grow", "shrink"):
        return {"in": "channels" if by_channels < 0.4 else "large"}.get(d.when, d.when)
    draw = random.Random(f"{plan.seed} {key} {step}")
    what = draw.choices(
        ["tiny", "small", "middle", "large", "several", "agree", "grow", "shrink"],
        [8, 4, 3, 3, 3, 2, 3, 0.7],
    )[0]
    return "channels" if by_channels < 0.15 and what not in ("agree", "grow", "shrink") else what


def rounded(x: float) -> float:
    return struct.unpack("f", struct.pack("f", x))[0]


def tree(values: list[float]) -> float:
    """The promised order of summation."""
    if len(values) == 1:
        return values[0]
    half = 1 << ((len(values) - 1).bit_length() - 1)
    return rounded(tree(values[:half]) + tree(values[half:]))


def share(process: int, key: str, step: int, part: int) -> list[float]:
    """What a member gives to an allreduce."""
    draw = zlib.crc32(f"{process} {key} {step} {part}".encode())
    return [rounded((draw >> 2 * i & 0xFFFF) / 7) for i in range(PERIOD)]


class Process:
    """A rank's process."""

    def __init__(self, plan: Plan, number: int, reports: int, directory: Path):
        self.plan, self.number, self.reports, self.dir = plan, number, reports, directory
        self.step, self.generation = 0, 0
        log = os.open(directory / f"log{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 2)
        os.close(log)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self.library = ctypes.CDLL(str(LIBRARY))
        self.library.goccl_last_error.restype = ctypes.c_char_p
        self.comm = ctypes.c_uint64()
        self.buffers: dict[int, tuple[Any, Any]] = {}
        self.calls: list[Any] = []  # with feeds, which must last

    def tell(self, what: str, **facts: Any) -> None:
        line = json.dumps({"process": self.number, "what": what, **facts}) + "\n"
        os.write(self.reports, line.encode()[:4096])

    def call(self, name: str, *args: Any) -> None:
        """Calls goccl_<name>(), and raises what it returns."""
        start = time.monotonic()
        result = KINDS[getattr(self.library, f"goccl_{name}")(*args)]
        took = time.monotonic() - start
        most = SLOW_JOIN if name == "comm_join" else SLOW
        if took > most * self.plan.pace and not self.plan.stops:
            self.tell("slow", call=name, seconds=took, result=result)
        if result != "OK":
            text = self.library.goccl_last_error().decode()
            self.tell("error", call=name, kind=result, text=text[:2000], seconds=took)
            raise Failed(result, name, text)

    # -- how it ends -------------------------------------------------------------------------

    def die(self, how: str) -> None:
        self.tell("dies", how=how)
        if how == "exit":
            os._exit(0)
        if how == "segv":
            ctypes.string_at(8)
        os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)

    def is_to_die(self, when: str) -> Death | None:
        d = self.death
        if d and d.when == when and d.step == self.step and self.rank in d.victims:
            return d
        return None

    def dies_soon(self, d: Death | None) -> None:
        """Has the process die while it goes on."""
        if d is None:
            return

        def end() -> None:
            time.sleep(d.delays[self.rank])
            self.die(d.how)

        threading.Thread(target=end, daemon=True).start()

    # -- what it calls -----------------------------------------------------------------------

    def config(self, **facts: Any) -> Config:
        return Config(
            struct_size=Config.transport.offset + Config.transport.size,
            group_name=b"kills",
            timeout_ms=int(self.plan.timeout * 1000),
            transport=self.plan.transport.encode(),
            **facts,
        )

    def begin(self, rank: int) -> None:
        """Joins the first members."""
        place, unique_id = self.dir / "id", ctypes.create_string_buffer(128)
        if rank == 0:
            self.call("get_unique_id", unique_id)
            self.tell("id", id=unique_id.raw.hex())
        while not place.exists():
            time.sleep(0.002)
        unique_id.raw = bytes.fromhex(place.read_text())
        config = self.config(rank=rank, size=self.plan.size)
        config.unique_id = ctypes.cast(unique_id, ctypes.c_char_p)
        # A char pointer of ctypes ends at a NUL, but only where Python reads it.
        self.call("comm_init", ctypes.byref(self.comm), ctypes.byref(config))
        self.newcomer = False
        self.look()

    def join(self, kill_after: float | None) -> None:
        """Comes later. Members that it knows of may be gone: it asks anew for their handles."""
        self.newcomer = True
        if kill_after is not None:

            def end() -> None:
                time.sleep(kill_after)
                self.die("kill")

            threading.Thread(target=end, daemon=True).start()
        config = self.config()
        while True:
            handles = [h.encode() for h in json.loads((self.dir / "handles").read_text())]
            if not handles:
                raise Failed("PEER_FAILED", "comm_join", "nobody is there")
            try:
                self.call(
                    "comm_join",
                    ctypes.byref(self.comm),
                    ctypes.byref(config),
                    (ctypes.c_char_p * len(handles))(*handles),
                    len(handles),
                )
            except Failed as e:
                if e.kind != "PEER_FAILED":
                    raise
                time.sleep(0.02)
                continue
            break
        self.look()

    def look(self) -> None:
        """Reads who the members are, and what is to become of them."""
        n, rank, epoch = ctypes.c_size_t(), ctypes.c_int(), ctypes.c_uint32()
        members = (Member * 64)()
        members[0].struct_size = ctypes.sizeof(Member)
        self.epoch = -1
        while self.epoch != epoch.value:  # members that recover by themselves do so at any time
            self.call("comm_epoch", self.comm, ctypes.byref(epoch))
            self.epoch = epoch.value
            self.call("comm_members", self.comm, members, ctypes.c_size_t(64), ctypes.byref(n))
            self.call("comm_rank", self.comm, ctypes.byref(rank))
            self.call("comm_epoch", self.comm, ctypes.byref(epoch))
        self.members = [m.process for m in members[: n.value]]
        self.rank = rank.value
        self.death: Death | None = None  # until the number of shrinks is known
        self.key = ""  # likewise
        if members[self.rank].pid != os.getpid():
            raise AssertionError(f"rank {self.rank} is process {members[self.rank].pid}")
        handle = ctypes.create_string_buffer(1025)
        self.call("comm_handle", self.comm, handle, ctypes.c_size_t(1025), None)
        self.tell("handle", handle=handle.value.decode())

    def allreduce(
        self, a: Any, out: Any, count: int, dtype: int, op: int, work: Any = None
    ) -> None:
        n = ctypes.c_uint64(count)
        self.call("allreduce", self.comm, a, out, n, dtype, op, None, self.slowly(count), work)

    def slowly(self, count: int) -> Any:
        """Some ranks have an input come late, piece by piece; NULL: it is there."""
        draw = zlib.crc32(f"{self.number} {self.key} {self.step} {count}".encode())
        if draw % 5:
            return None
        times = itertools.count()
        late = draw >> 8 & 7

        def need(*_: Any) -> int:
            return int(next(times) % (late + 1) == late)

        feed = Feed(ctypes.sizeof(Feed), None, NEED(need))
        call = Call(ctypes.sizeof(Call), 0, feed=ctypes.pointer(feed))
        self.calls.append((call, feed))
        return ctypes.byref(call)

    def largest(self, *values: int) -> list[int]:
        array = ctypes.c_int64 * len(values)
        out = array()
        self.allreduce(array(*values), out, len(values), INT64, MAX)
        return list(out)

    def meet(self) -> None:
        """The first collective of an epoch: newcomers learn how far the others have come."""
        known = len(self.members) if not self.newcomer else 0
        newcomers, generation, step = self.largest(known, self.generation, self.step)
        self.generation, self.step = generation, step
        self.newcomer = False
        self.key = f"{generation}.{self.epoch}"
        self.base = self.step
        self.death = death(self.plan, self.key, len(self.members), 1 if newcomers else 0)
        if self.death:
            self.death.step += step
        held = self.held() if self.plan.lasting else {}
        self.tell("epoch", key=self.key, rank=self.rank, members=self.members, **held)

    def held(self) -> dict[str, int]:
        """What the process holds of the system."""
        own = Path("/proc/self")
        pinned = (own / "status").read_text().partition("VmPin:")[2].split()[0]
        return {
            "pinned": int(pinned),  # kilobytes that adapters reach
            "files": len(list((own / "fd").iterdir())),
            "threads": len(list((own / "task").iterdir())),
            "mappings": (own / "maps").read_text().count("\n"),
            "kilobytes": int((own / "statm").read_text().split()[1]) * 4,
        }

    def buffer(self, count: int) -> tuple[Any, Any]:
        if count not in self.buffers:
            self.buffers[count] = self.memory(4 * count), self.memory(4 * count)
        return self.buffers[count]

    def memory(self, size: int) -> Any:
        """Long buffers lie in memory that peers map, or read by RDMA, in every other schedule."""
        if size < SHAREABLE or zlib.crc32(self.plan.seed.encode()) % 2:
            return ctypes.create_string_buffer(size)
        memory = ctypes.c_void_p()
        self.call("mem_alloc", ctypes.byref(memory), ctypes.c_size_t(size))
        return (ctypes.c_char * size).from_address(memory.value or 0)

    def expected(self, part: int) -> bytes:
        shares = [share(p, self.key, self.step, part) for p in self.members]
        return struct.pack(
            f"{PERIOD}f", *(tree(list(column)) for column in zip(*shares, strict=True))
        )

    def fill(self, a: Any, count: int, part: int) -> None:
        own = share(self.members[self.rank], self.key, self.step, part)
        a.raw = struct.pack(f"{PERIOD}f", *own) * (count // PERIOD)

    def check(self, out: Any, count: int, part: int) -> None:
        want = self.expected(part) * (count // PERIOD)
        if out.raw != want:
            got, at = out.raw, range(0, 4 * count, 4)
            first = next(i for i in at if got[i : i + 4] != want[i : i + 4]) // 4
            raise AssertionError(
                f"epoch {self.key} step {self.step} rank {self.rank}: element {first} is wrong"
            )
        self.tell(
            "result", key=self.key, step=self.step, part=part, digest=zlib.crc32(out.raw[:32])
        )

    def reduce(self, count: int) -> None:
        a, out = self.buffer(count)
        in_place = zlib.crc32(f"{self.key} {self.step}".encode()) % 3 == 0
        self.fill(out if in_place else a, count, 0)
        self.dies_soon(self.is_to_die("in"))
        self.allreduce(out if in_place else a, out, count, FLOAT32, SUM)
        self.check(out, count, 0)

    def several(self) -> None:
        """Collectives that are under way at once."""
        count, works = 4096, []
        buffers = [self.buffer(count + PERIOD * i) for i in range(3)]
        failed = None
        for i, (a, out) in enumerate(buffers):
            n, work = count + PERIOD * i, ctypes.c_uint64()
            self.fill(a, n, i)
            try:
                self.allreduce(a, out, n, FLOAT32, SUM, ctypes.byref(work))
                works.append(work)
            except Failed as e:
                failed = e
        for i, work in enumerate(works):
            try:
                self.call("work_wait", work, ctypes.c_int64(-1))
                self.check(buffers[i][1], count + PERIOD * i, i)
            except Failed as e:
                failed = failed or e
            self.call("work_free", work)
        if failed:
            raise failed

    def channels(self) -> None:
        """Each member puts to the next one, and reads back what it has put, over new channels."""
        count = PERIOD * zlib.crc32(f"{self.key} {self.step} put".encode()) % (1 << 18) + PERIOD
        count -= count % PERIOD
        size, here = ctypes.c_uint64(4 * count), self.rank
        after, before = (here + 1) % len(self.members), (here - 1) % len(self.members)
        address = ctypes.c_void_p()
        self.call("mem_alloc", ctypes.byref(address), ctypes.c_size_t(3 * 4 * count))
        block = [
            (ctypes.c_char * (4 * count)).from_address((address.value or 0) + i * 4 * count)
            for i in range(3)
        ]
        board, own, back = block
        if self.step % 3:  # else verbs read them where they are
            own, back = ((ctypes.c_char * (4 * count))() for _ in range(2))
        self.fill(own, count, 0)
        mine, memories = ctypes.c_uint64(), (ctypes.c_uint64 * len(self.members))()
        to, come = ctypes.c_uint64(), ctypes.c_uint64()
        kind = ChannelConfig(ctypes.sizeof(ChannelConfig), [None, b"port"][self.step % 2])
        try:
            self.call("memory_register", self.comm, address, size, 3, ctypes.byref(mine))
            self.call("memory_exchange", self.comm, mine, memories)
            config = None if here == after else ctypes.byref(kind)
            for end, peer, tag in (to, after, here), (come, before, before):
                if end is to or here != after:
                    self.call("channel_open", self.comm, peer, tag, config, ctypes.byref(end))
            if here == after:
                come = to
            self.dies_soon(self.is_to_die("in"))
            one, none, timeout = ctypes.c_uint64(1), ctypes.c_uint64(), ctypes.c_int64(0)
            self.call("channel_put_signal", to, memories_at(memories, after), none, own, size, one)
            self.call("channel_wait", come, one, timeout)
            theirs = share(self.members[before], self.key, self.step, 0)
            want = struct.pack(f"{PERIOD}f", *theirs) * (count // PERIOD)
            if board.raw != want:
                raise AssertionError(f"epoch {self.key} step {self.step}: what was put is wrong")
            self.call("channel_get", to, back, memories_at(memories, after), none, size)
            self.call("channel_flush", to, timeout)
            if back.raw != own.raw:
                raise AssertionError(f"epoch {self.key} step {self.step}: what was got is wrong")
            # The peer closes its end once it knows that this rank has read.
            self.call("channel_signal", to, one)
            self.call("channel_wait", come, one, timeout)
        finally:
            for channel in {to.value, come.value} - {0}:
                self.library.goccl_channel_close(ctypes.c_uint64(channel))
            for memory in {mine.value, *memories} - {0}:
                self.library.goccl_memory_deregister(ctypes.c_uint64(memory))
            self.library.goccl_mem_free(address)

    def agree(self) -> None:
        self.dies_soon(self.is_to_die("agree"))
        flags = ctypes.c_uint64(0b1111 & ~(1 << self.rank % 4) | 1 << 40)
        self.call("comm_agree", self.comm, ctypes.byref(flags))
        self.tell("agreed", key=self.key, step=self.step, flags=flags.value)

    def grow(self) -> None:
        waiting = ctypes.c_int()
        self.call("comm_num_waiting", self.comm, ctypes.byref(waiting))
        (n,) = self.largest(waiting.value)
        self.dies_soon(self.is_to_die("grow"))
        if n > 0:  # one that ends before it is let in is waited for, for half of the time
            self.call("comm_grow", self.comm, n, ctypes.c_int64(4000))
        else:
            self.call("comm_recover", self.comm, ctypes.c_int64(int(2000 * self.plan.timeout)))
        self.step += 1
        self.look()
        self.meet()

    def shrink(self) -> bool:
        """Makes a new communicator; sometimes without the last rank, which ends then."""
        self.dies_soon(self.is_to_die("shrink"))
        size = len(self.members)
        exclude = self.excludes_last()
        if exclude and self.rank == size - 1:
            return True
        made, last = ctypes.c_uint64(), ctypes.c_int(size - 1)
        self.call(
            "comm_shrink",
            self.comm,
            ctypes.byref(last),
            int(exclude),
            zlib.crc32(self.key.encode()) >> 8 & 1,
            ctypes.byref(made),
        )
        self.call("comm_destroy", self.comm)
        self.comm = made
        self.generation += 1
        self.step += 1
        self.look()
        self.meet()
        return False

    def excludes_last(self) -> bool:
        """Whether a shrink in this epoch may exclude the last rank. Others may have met, and
        shrink, before this process has met them."""
        return len(self.members) > 4 and (self.key == "" or zlib.crc32(self.key.encode()) % 2 == 0)

    def recover(self) -> bool:
        """Goes on with those that are left. It tells whether this process is not one of them, for
        the others have excluded it before it has come to that step."""
        d = self.death
        if d and d.when == "recover" and self.rank in d.victims:
            self.dies_soon(d)
        for _ in range(20):
            try:
                self.call("comm_recover", self.comm, ctypes.c_int64(int(2000 * self.plan.timeout)))
            except Failed as e:
                last = self.rank == len(self.members) - 1
                if e.kind == "EXCLUDED" and last and self.excludes_last():
                    return True
                if e.kind not in MENDED:
                    raise
                continue
            break
        else:
            raise AssertionError("it cannot recover")
        if d and d.when == "after" and self.rank in d.victims:
            self.die(d.how)
        self.look()
        return False

    # -- the program -------------------------------------------------------------------------

    def run(self) -> str:
        fresh = True
        while True:
            try:
                if fresh:
                    self.meet()
                    fresh = False
                while self.step < self.plan.steps:
                    if self.perform():
                        return "left out"
                self.call("barrier", self.comm, None, None)
            except Failed as e:
                if e.kind not in MENDED:
                    raise
                if self.recover():
                    return "left out"
                fresh = True
                continue
            return "finished"

    def perform(self) -> bool:
        step, key = self.step, self.key
        if d := self.is_to_die("before"):
            self.die(d.how)
        if self.death and self.death.when == "idle" and self.death.step == step:
            if d := self.is_to_die("idle"):
                self.die(d.how)
            time.sleep(0.03)
        what = action(self.plan, key, step, self.death)
        sizes = {"tiny": 8, "small": 1024, "middle": 16384, "large": 1 << 18}
        if what in sizes:
            self.reduce(sizes[what])
        elif getattr(self, what)():
            return True
        if what not in ("grow", "shrink"):
            self.step += 1
        return False

    def main(self, born: Callable[[], None]) -> None:
        try:
            born()
            outcome = self.run()
        except Failed as e:
            outcome = e.kind
        except BaseException as e:
            self.tell("broken", text=repr(e))
            raise
        self.tell("end", outcome=outcome)  # before the others can hear of it
        if self.comm.value:
            self.call("comm_destroy", self.comm)
        self.call("shutdown")


class Completing(Process):
    """A rank's process whose collectives complete although members die in them. It calls nothing to
    recover, so all members stay in step."""

    def __init__(self, *args: Any):
        os.environ["GOCCL_RECOVERY"] = "survivors"  # before the library is loaded
        super().__init__(*args)

    def run(self) -> str:
        self.meet()
        if self.step < 0:
            return "left out"  # all that knew of the program have died
        while self.step < self.plan.steps:
            self.perform()
        self.call("barrier", self.comm, None, None)
        return "finished"

    def meet(self) -> None:
        (self.step,) = self.largest(-1 if self.newcomer else self.step)
        self.newcomer = False
        self.tell("met", id=self.members[self.rank])

    def perform(self) -> bool:
        draw = random.Random(f"{self.plan.seed} {self.step}")
        what = draw.choices(["sums", "barrier", "grow"], [8, 1, 2])[0]
        own = random.Random(f"{self.plan.seed} {self.number} {self.step}")
        if own.random() < self.plan.deadly:
            self.die_within(own.random() * 0.003, own.choice(HOWS))
        if what == "sums":
            self.sums([draw.choice([8, 1024, 16384, 1 << 18]) for _ in range(draw.choice([1, 3]))])
        elif what == "barrier":
            self.call("barrier", self.comm, None, None)
        else:
            self.let_in()
            return False
        self.step += 1
        return False

    def die_within(self, seconds: float, how: str) -> None:
        def end() -> None:
            time.sleep(seconds)
            self.die(how)

        threading.Thread(target=end, daemon=True).start()

    def let_in(self) -> None:
        waiting = ctypes.c_int()
        self.call("comm_num_waiting", self.comm, ctypes.byref(waiting))
        come = self.largest(waiting.value) != [0]
        self.step += 1
        if come:
            self.call("comm_recover", self.comm, ctypes.c_int64(int(2000 * self.plan.timeout)))
            self.look()
            self.meet()

    def sums(self, counts: list[int]) -> None:
        """Allreduces that are under way at once."""
        self.look()
        works, before = [], self.members
        for part, count in enumerate(counts):
            count += PERIOD * part
            a, out = self.buffer(count)
            given = out if zlib.crc32(f"{self.step} {part}".encode()) % 2 else a
            self.fill(given, count, part)
            work = ctypes.c_uint64()
            self.allreduce(given, out, count, FLOAT32, SUM, ctypes.byref(work))
            n = ctypes.c_int()
            if not work.value:  # it has ended
                self.call("work_contributors", work, ctypes.byref(n))
            works.append((work, count, out, n))
        for part, (work, count, out, n) in enumerate(works):
            self.call("work_wait", work, ctypes.c_int64(-1))
            if work.value:
                self.call("work_contributors", work, ctypes.byref(n))
            self.call("work_free", work)
            self.look()
            head = out.raw[: 4 * PERIOD]
            if not self.is_sum(head, part, before, n.value) or out.raw != head * (count // PERIOD):
                raise AssertionError(f"step {self.step} part {part}: a wrong sum of {n.value}")
            self.tell(
                "result", key="", step=self.step, part=part, digest=zlib.crc32(head) + n.value
            )

    def is_sum(self, data: bytes, part: int, before: list[int], n: int) -> bool:
        """Whether members have given data, n of those before, all of those that are left among
        them."""
        for given in itertools.combinations(before, n):
            if set(self.members) & set(before) <= set(given):
                self.members, now = list(given), self.members
                same = data == self.expected(part)
                self.members = now
                if same:
                    return True
        return False


class Host:
    """Where ranks are started. It loads no library, so that what it forks is clean. It does what
    the supervisor says, and passes on what the ranks report."""

    def __init__(self, supervisor: socket.socket):
        self.supervisor = supervisor
        self.dir = Path(tempfile.mkdtemp(prefix="kills"))
        self.pids: dict[int, int] = {}  # of the ranks that have not ended, by number
        self.reading, self.writing = os.pipe()

    def serve(self) -> None:
        """Lasts until the supervisor ends the connection."""
        rest = b""
        while True:
            sources: list[Any] = [self.supervisor, self.reading]
            ready = select.select(sources, [], [], 0.01)[0]
            try:
                if self.supervisor in ready:
                    data = self.supervisor.recv(1 << 16)
                    if not data:
                        break
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        order = json.loads(line)
                        getattr(self, order.pop("do"))(**order)
                self.forward()
                self.reap()
            except ConnectionError:
                break
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        shutil.rmtree(self.dir)
        self.supervisor.close()
        os.close(self.reading)
        os.close(self.writing)

    def forward(self) -> None:
        while select.select([self.reading], [], [], 0)[0]:
            self.supervisor.sendall(os.read(self.reading, 1 << 16))

    def reap(self) -> None:
        for number, pid in list(self.pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del self.pids[number]
            self.forward()  # its last words
            log = (self.dir / f"log{number}").read_text(errors="replace")[-20000:]
            facts = {"status": os.waitstatus_to_exitcode(status), "log": log}
            line = json.dumps({"process": number, "what": "ended", **facts})
            self.supervisor.sendall(line.encode() + b"\n")

    # -- what the supervisor says ------------------------------------------------------------

    def start(
        self, number: int, rank: int | None, kill_after: float | None, plan: dict[str, Any]
    ) -> None:
        """Starts a rank, or a process that joins."""
        pid = os.fork()
        if pid:
            self.pids[number] = pid
            return
        code = 1
        try:
            self.supervisor.close()
            os.close(self.reading)
            kind = Completing if plan["completes"] else Process
            p = kind(Plan(**plan), number, self.writing, self.dir)
            p.main(lambda: p.join(kill_after) if rank is None else p.begin(rank))
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)

    def write(self, name: str, text: str) -> None:
        """Writes a file that ranks read."""
        new = self.dir / "new"
        new.write_text(text)
        new.rename(self.dir / name)

    def signal(self, number: int, sent: int) -> None:
        if number in self.pids:
            os.kill(self.pids[number], sent)


def serve_all(supervisor: str) -> None:
    """Is a host in all schedules of a supervisor."""
    met, until = False, time.monotonic() + 60
    while True:
        try:
            s = socket.create_connection((supervisor, PORT))
        except OSError:
            if met or time.monotonic() > until:
                return
            time.sleep(0.05)
            continue
        met = True
        Host(s).serve()


@dataclass(eq=False)
class Seen:
    """What the supervisor knows of a process."""

    newcomer: bool
    handles: str = ""
    dies: str = ""  # how it is to die
    stopped: bool = False  # it has been, at some time
    outcome: str = ""
    status: int | None = None
    log: str = ""
    process: int = 0  # as members name it; 0 before it has met others
    members: tuple[int, ...] = ()  # of its present epoch


class Supervisor:
    def __init__(self, seed: int, plan: Plan, hosts: list[socket.socket]):
        self.plan, self.hosts = plan, hosts
        self.draw = random.Random(f"{seed} supervisor")
        self.processes: list[Seen] = []
        self.wrong: list[str] = []
        self.notes: Counter[str] = Counter()
        self.epochs: dict[str, list[int]] = {}
        self.results: dict[tuple[Any, ...], list[tuple[Seen, int]]] = {}
        self.agreed: dict[tuple[Any, ...], list[tuple[Seen, int]]] = {}
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.kills = 0
        self.held: list[dict[str, int]] = []  # of process 0, by epoch
        self.trace: list[str] = []

    def start(self, rank: int | None) -> None:
        number = len(self.processes)
        kill_after = None
        if rank is None and self.draw.random() < 0.25 and not self.plan.lasting:
            kill_after = self.draw.random() * 0.06
        self.processes.append(Seen(rank is None))
        self.have(number, "start", rank=rank, kill_after=kill_after, plan=asdict(self.plan))

    def have(self, number: int, do: str, **facts: Any) -> None:
        """Has the host of a process do something."""
        host = self.hosts[number % len(self.hosts)]
        host.sendall(json.dumps({"do": do, "number": number, **facts}).encode() + b"\n")

    def share(self, name: str, text: str) -> None:
        """Has ranks read something."""
        for host in self.hosts:
            host.sendall(json.dumps({"do": "write", "name": name, "text": text}).encode() + b"\n")

    def newcomer(self) -> None:
        if (self.plan.lasting or len(self.processes) < MOST) and any(
            p.handles for p in self.living()
        ):
            self.start(None)

    def living(self) -> list[Seen]:
        return [p for p in self.processes if p.status is None and not p.dies and not p.outcome]

    def share_handles(self) -> None:
        self.share("handles", json.dumps([p.handles for p in self.living() if p.handles]))

    def hear(self, r: dict[str, Any]) -> None:
        p = self.processes[r["process"]]
        what = r["what"]
        self.trace.append(f"{time.monotonic() - self.began:.3f} {r}")
        if what == "id":
            self.share("id", r["id"])
        elif what == "handle":
            p.handles = r["handle"]
            self.share_handles()
        elif what == "dies":
            self.kills += 1
            p.dies = r["how"]
            if p.dies == "stop":
                p.stopped = True
                delay = self.draw.choice([0.2, 3.0, 7.0])
                end = self.draw.random() < 0.3
                self.later.append((time.monotonic() + delay, lambda: self.go_on(p, end)))
            self.share_handles()
            if self.draw.random() < 0.8 or self.plan.lasting:
                at = time.monotonic() + self.draw.random() * 0.05
                self.later.append((at, self.newcomer))
        elif what == "epoch":
            if r["process"] == 0 and self.plan.lasting:
                self.held.append(r)
            p.process, p.members = r["members"][r["rank"]], tuple(r["members"])
            known = self.epochs.setdefault(r["key"], r["members"])
            # One that was stopped may go on alone once all the others have ended.
            if known != r["members"] and any(q.process in known for q in self.living()):
                self.fail(f"epoch {r['key']}: members are {known} and {r['members']}")
        elif what == "met":
            p.process = r["id"]
        elif what == "result":
            place = r["key"], p.members, r["step"], r["part"]
            # Where survivors complete collectives, what only the dead have had runs once more.
            others = self.results.setdefault(place, [])
            counts = [o for o in others if not (self.plan.completes and o[0].dies)]
            if any(digest != r["digest"] for _, digest in counts):
                self.fail(f"epoch {r['key']} step {r['step']}: {r['digest']:x}, {others}")
            others.append((p, r["digest"]))
        elif what == "agreed":
            # What members have decided that have ended all is forgotten.
            others = self.agreed.setdefault((r["key"], p.members, r["step"]), [])
            if any(flags != r["flags"] and q in self.living() for q, flags in others):
                self.fail(f"epoch {r['key']} step {r['step']}: agreed are {r['flags']:x}, {others}")
            others.append((p, r["flags"]))
        elif what == "end":
            p.outcome = r["outcome"]
            p.handles = ""
            self.share_handles()
        elif what == "ended":
            p.status, p.log, p.handles = r["status"], r["log"], ""
            self.share_handles()
        elif what == "error":
            self.notes[f"{r['call']}: {r['kind']}"] += 1
            bad = ("INTERNAL", "SYSTEM", "INVALID_ARGUMENT", "INVALID_HANDLE", "UNSUPPORTED")
            if r["kind"] in bad or not r["text"] or "%!" in r["text"]:
                self.fail(f"process {r['process']}: {r['call']}: {r['kind']}: {r['text']}")
        elif what == "broken" or (what == "slow" and (r["result"] == "OK" or len(self.hosts) == 1)):
            self.fail(str(r))

    def go_on(self, p: Seen, end: bool) -> None:
        """Continues a process that has been stopped, or ends it."""
        if p.status is None:
            p.dies = "stop, then kill" if end else ""
            sent = signal.SIGKILL if end else signal.SIGCONT
            self.have(self.processes.index(p), "signal", sent=sent)

    def fail(self, text: str) -> None:
        self.wrong.append(text)

    def run(self) -> None:
        self.began = time.monotonic()
        rests = dict.fromkeys(self.hosts, b"")
        hung = False
        for rank in range(self.plan.size):
            self.start(rank)
        while any(p.status is None for p in self.processes):
            now = time.monotonic()
            if now - self.began > DEADLINE * self.plan.pace and not hung:
                hung = True
                self.hang()
            due = [f for at, f in self.later if at <= now]
            self.later = [(at, f) for at, f in self.later if at > now]
            for f in due:
                f()
            for host in select.select(self.hosts, [], [], 0.01)[0]:
                data = host.recv(1 << 16)
                if not data:
                    raise ConnectionError("a host has ended")
                *lines, rests[host] = (rests[host] + data).split(b"\n")
                for line in lines:
                    self.hear(json.loads(line))
        self.judge()

    def hang(self) -> None:
        """Has processes that do not end write their stacks to their logs, and ends them."""
        for number, p in enumerate(self.processes):
            if p.status is None:
                self.fail(f"process {number} has not ended")
                self.have(number, "signal", sent=signal.SIGUSR1)
                end = functools.partial(self.have, number, "signal", sent=signal.SIGKILL)
                self.later.append((time.monotonic() + 1, end))

    def may_be_too_few(self, p: Seen) -> bool:
        """Whether no majority of a process's epoch is left. That members of another host have ended
        is proved only where there was a connection to them."""
        left = [q for q in self.processes if q.process in p.members and not q.dies]
        return len(self.hosts) > 1 and 2 * len(left) <= len(p.members)

    def judge(self) -> None:
        ways = {"kill": -signal.SIGKILL, "segv": -signal.SIGSEGV, "exit": 0}
        for i, p in enumerate(self.processes):
            if p.dies and p.dies != "stop":
                if p.status != ways.get(p.dies, -signal.SIGKILL) and not p.outcome:
                    self.fail(f"process {i} was to die by {p.dies}, and ended with {p.status}")
                continue
            good = {"finished", "left out"}
            if self.plan.stops:
                # Of a process that was stopped and one that has found it so only one goes on.
                good |= {"NO_QUORUM", "TIMEOUT", "EXCLUDED"}
            if p.newcomer and not p.process:
                good |= {"PEER_FAILED"}
                if any(q.outcome == "NO_QUORUM" for q in self.processes):
                    good |= {"TIMEOUT"}
            if self.may_be_too_few(p):
                good |= {"NO_QUORUM"}
            if p.stopped and p.status == -signal.SIGKILL:
                continue  # by a member of its host, that it may write to no memory any more
            if p.outcome not in good or p.status != 0:
                self.fail(f"process {i} ended with {p.outcome or 'nothing'}, status {p.status}")
        n, limits = len(self.held), {"pinned": 2048, "files": 6, "threads": 4, "mappings": 30}
        for what, more in limits.items() if n else ():
            course = [h[what] for h in self.held]
            self.trace.append(f"{what}: {course}")
            if min(course[-n // 4 :]) > max(course[: n // 4]) + more:
                self.fail(f"process 0 holds more and more {what}: {course}")
        for i, p in enumerate(self.processes):
            if p.log:
                self.fail(f"process {i} wrote:\n{p.log}")


def this_host() -> socket.socket:
    """Makes a host of a process of this one."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        try:
            ours.close()
            Host(theirs).serve()
        finally:
            os._exit(0)
    theirs.close()
    return ours


def supervise(
    seed: int, a: argparse.Namespace, door: socket.socket | None
) -> tuple[bool, int, Counter[str]]:
    """Runs a schedule, and tells whether all was well, how many have died, and what they got."""
    hosts = [door.accept()[0] for _ in range(a.hosts)] if door else [this_host()]
    s = Supervisor(seed, Plan.of(seed, a.lasting, a.transport, a.pace, a.completes), hosts)
    s.run()
    for host in hosts:
        host.close()
    p = s.plan
    line = (
        f"seed {seed}: {p.size} {p.transport}{' stops' if p.stops else ''}, "
        f"{len(s.processes)} processes, {s.kills} deaths, {len(s.epochs)} epochs, "
        f"{time.monotonic() - s.began:.1f} s"
    )
    print(line, flush=True)
    for text in s.wrong:
        print(f"  seed {seed}: {text}", flush=True)
    if s.wrong or a.trace:
        trace = Path(tempfile.gettempdir()) / f"kills-{seed}.trace"
        trace.write_text("\n".join(s.trace))
        print(f"  seed {seed}: see {trace}", flush=True)
    return not s.wrong, s.kills, s.notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="?", help="first:last")
    parser.add_argument("--host", help="be a host of a supervisor, which runs on this one")
    parser.add_argument("--hosts", type=int, default=0, help="how many take part; 0: this one")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument(
        "--lasting", type=int, default=0, help="about how many epochs one process lives through"
    )
    parser.add_argument("--transport", default="", help="of all schedules; they draw shm or tcp")
    parser.add_argument("--pace", type=float, default=1, help="so many times as long all may take")
    parser.add_argument("--completes", action="store_true", help="survivors complete collectives")
    parser.add_argument("--trace", action="store_true", help="keeps what the ranks have told")
    a = parser.parse_args()
    if a.host:
        serve_all(a.host)
        return
    door = socket.create_server(("", PORT)) if a.hosts else None
    if door:
        a.jobs = 1
    first, _, last = a.seeds.partition(":")
    running: dict[int, int] = {}
    failed = []
    seeds = list(range(int(first), int(last or first) + 1))
    total, notes = 0, Counter()
    with tempfile.TemporaryFile("a+") as results:
        while seeds or running:
            if seeds and len(running) < a.jobs:
                seed = seeds.pop(0)
                pid = os.fork()
                if pid == 0:
                    well, *facts = supervise(seed, a, door)
                    os.write(results.fileno(), (json.dumps(facts) + "\n").encode())
                    os._exit(0 if well else 1)
                running[pid] = seed
                continue
            pid, status = os.wait()
            seed = running.pop(pid)
            if status:
                failed.append(seed)
        results.seek(0)
        for line in results:
            kills, seen = json.loads(line)
            total += kills
            notes.update(seen)
    print(f"{total} deaths; failed seeds: {sorted(failed)}")
    print(", ".join(f"{what} {n}" for what, n in sorted(notes.items())))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
