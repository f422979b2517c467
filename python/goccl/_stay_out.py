"""Tells the ranks of a group that one of them cannot join it.

The library does so itself. This is for what fails before the library is loaded, or where it cannot
start threads: the other ranks wait in the library's meeting (core/bootstrap), until their timeout.
A rank that cannot join takes part in the meeting with a problem instead of an address. Its records
are those of core/bootstrap (records.go, roster.go), without a secret. The others believe such a
record as any other: once it holds a nonce that they have just made.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import threading
import time
import urllib.parse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_LINGER = 3.0  # seconds for the others to come and to hear, as in the library
_PAUSE = 0.02  # between two looks at the store
_MOST = 4000  # bytes of the reason

_JOIN, _ROSTER, _CONFIRM = b"GCJ4", b"GCR4", b"GCC4"
_PROBLEM = 2  # the flag of a record that tells why there can be no group
_NONE = bytes(16)  # a nonce, or the mark of a rank that has not joined
_SETTINGS = bytes(16)  # the digest of none
_UNPROVED = bytes(32)
_NO_ROOT = bytes(1)  # of a tree of leaders: the table is in the store


def stay_out(store: Store, rank: int, size: int, group_name: str, why: str) -> None:
    """Tells the other ranks of a group why this one cannot join it.

    Returns once all have heard, and after some seconds at the latest. A rank that comes later than
    that is told nothing, and waits until its timeout.

    Args:
        store: where the ranks meet.
        rank: this rank in the group.
        size: how many ranks the group has.
        group_name: the group's name in the store.
        why: the reason.
    """
    incarnation, attempt = _attempt()
    names = (urllib.parse.quote(name, safe="$&+=:@~") for name in (incarnation, group_name))
    prefix = "/".join(("goccl", *names, ""))
    meeting = _Meeting(store, prefix, rank, size, attempt, _printable(why))

    def tell() -> None:
        with contextlib.suppress(Exception):  # of a store that does not work
            meeting.lead() if rank == 0 else meeting.follow()

    # A store may not answer: it is foreign code.
    teller = threading.Thread(target=tell, daemon=True)
    try:
        teller.start()
    except RuntimeError:  # there are no threads to be had, which may be the reason itself
        tell()
    else:
        teller.join(_LINGER + 1)


class _Meeting:
    """One rank's part."""

    def __init__(
        self, store: Store, prefix: str, rank: int, size: int, attempt: str, why: bytes
    ) -> None:
        self._store, self._prefix, self._rank, self._size, self._why = (
            store,
            prefix,
            rank,
            size,
            why,
        )
        self._attempt = hashlib.sha256(attempt.encode()).digest()[:8]
        self._nonce = os.urandom(15) + b"\1"  # none is all zero
        self._end = time.monotonic() + _LINGER

    def follow(self) -> None:
        """Joins with the problem. Rank 0 tells all of it when this rank has confirmed its
        roster."""
        head = struct.pack("<4sBII", _JOIN, _PROBLEM, self._rank, self._size)
        head += self._nonce + self._attempt + struct.pack("<I", len(self._why))
        member = struct.pack("<II", 0, 0)
        self._set("newest", self._nonce)
        self._set(f"join/{self._rank}", head + self._why + _SETTINGS + member + _UNPROVED)
        confirmed = _NONE
        while self._goes_on():
            roster, mine = self._get("roster"), self._get("table")[16 * self._rank :][:8]
            # Its fields up to the nonce are of fixed size.
            if roster[:4] == _ROSTER and roster[4] & _PROBLEM and mine == self._nonce[:8]:
                if roster[6:22] != confirmed:
                    confirmed = roster[6:22]
                    record = struct.pack("<4s3x16s32s", _CONFIRM, confirmed, _UNPROVED)
                    self._set(f"confirm/{self._rank}", record)
                if self._get("news")[:16] == confirmed:
                    self._set(f"heard/{self._rank}", confirmed)
                    return

    def lead(self) -> None:
        """Writes a roster with the problem, for the ranks that have joined, until all have
        heard."""
        why = b"rank 0: " + self._why
        secret = os.urandom(32)
        marks, listed = [_NONE] * self._size, None
        marks[0] = self._nonce
        while self._goes_on():
            for rank in range(1, self._size):
                join = self._get(f"join/{rank}")
                digest = hashlib.sha256(join).digest()
                marks[rank] = join[13:21] + digest[:8] if join[:4] == _JOIN else _NONE
            if marks != listed:
                listed = list(marks)
                table = b"".join(marks)
                head = (_ROSTER, _PROBLEM, 0, self._nonce, 0, secret, self._size, _SETTINGS)
                record = struct.pack("<4sBB16sQ32sI16s", *head) + struct.pack(
                    "<I32sI", self._size, hashlib.sha256(table).digest(), len(table)
                )
                record += _NO_ROOT + struct.pack("<I", len(why)) + why + _UNPROVED
                self._set("table", table)
                self._set("roster", record)
                name = hashlib.sha256(record).digest()[:16]
                self._set("news", self._nonce + b"\0" + _UNPROVED + name)
            if all(self._get(f"heard/{rank}") == self._nonce for rank in range(1, self._size)):
                return

    def _goes_on(self) -> bool:
        time.sleep(_PAUSE)
        return time.monotonic() < self._end

    def _set(self, key: str, value: bytes) -> None:
        self._store.set(self._prefix + key, value)  # type: ignore[arg-type]  # bytes are taken, too

    def _get(self, key: str) -> bytes:
        """Returns a value, or nothing where there is none."""
        key = self._prefix + key
        return self._store.get(key) if self._store.check([key]) else b""


def _attempt() -> tuple[str, str]:
    """What keys of the meeting begin with, and the attempt: see Runtime.readAttempt in core."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "False":
        return os.environ.get("MASTER_PORT", ""), ""
    return "", os.environ.get("TORCHELASTIC_RESTART_COUNT", "")


def _printable(text: str) -> bytes:
    """Returns a text as a record may hold it: without a rune that is not printable."""
    plain = (c if c.isascii() and c.isprintable() else ascii(c)[1:-1] for c in text)
    return "".join(plain).encode()[:_MOST]
