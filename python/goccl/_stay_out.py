"""Tells the ranks of a group that one of them cannot join it.

The library does so itself. This is for what fails before the library is loaded, or where it cannot
start threads: the other ranks wait in the library's meeting (core/bootstrap), until their timeout.
A rank that cannot join writes a text into the store, which core/bootstrap/out.go describes. The
others believe it once this rank has read what they have written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import urllib.parse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_LINGER = 3.0  # seconds for the others to come and to hear, as in the library
_PAUSE = 0.02  # between two looks at the store
_MOST = 4000  # characters of the reason
_OUT = b"goccl out "


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

    def tell() -> None:
        with contextlib.suppress(Exception):  # of a store that does not work
            _tell(store, rank, size, group_name, why)

    # A store may not answer: it is foreign code.
    teller = threading.Thread(target=tell, daemon=True)
    try:
        teller.start()
    except RuntimeError:  # there are no threads to be had, which may be the reason itself
        tell()
    else:
        teller.join(_LINGER + 1)


def _tell(store: Store, rank: int, size: int, group_name: str, why: str) -> None:
    incarnation, attempt = _attempt()
    names = (urllib.parse.quote(name, safe="$&+=:@~") for name in (incarnation, group_name))
    prefix = "/".join(("goccl", *names, ""))

    def put(key: str, value: bytes) -> None:
        store.set(prefix + key, value)  # type: ignore[arg-type]  # bytes are taken, too

    def get(key: str) -> bytes:
        """Returns a value, or nothing where there is none."""
        return store.get(prefix + key) if store.check([prefix + key]) else b""

    reason = why.encode("ascii", "backslashreplace").decode()[:_MOST]
    text = _OUT + f"{os.urandom(16).hex()}\n{attempt}\n{reason}".encode()
    put("newest", text)
    if rank == 0:
        put("news", text)
        others = {other: f"join/{other}" for other in range(1, size)}
    else:
        put(f"join/{rank}", text)
        others = {rank: "news"}
    read = dict.fromkeys(others, b"")
    end = time.monotonic() + _LINGER
    while others and time.monotonic() < end:
        for other, theirs in list(others.items()):
            value = get(theirs)
            if rank != 0 and value.startswith(_OUT):  # rank 0 stays out, too, or did in a dead run
                if get(f"out/{other}") == _digest(text):
                    put(f"heard/{other}", value)
                    return
            elif value != read[other]:
                read[other] = value
                put(f"out/{other}", _digest(value))
            if get(f"heard/{other}") == text:
                del others[other]
        time.sleep(_PAUSE)


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).hexdigest().encode()


def _attempt() -> tuple[str, str]:
    """What keys of the meeting begin with, and the attempt: see Runtime.readAttempt in core."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "False":
        return os.environ.get("MASTER_PORT", ""), ""
    return "", os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
