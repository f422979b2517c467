"""Where a communicator comes from: launchers, stores, ids, and members that are there."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
from collections.abc import Iterable
from dataclasses import fields
from datetime import timedelta
from typing import Any

from goccl import _capi, _launch
from goccl._launch import Place
from goccl._options import OptionFields

from ._communicator import Communicator, _int, _text, _texts, read_id
from ._meet import Client, Server, key_of
from ._store import KeyValueStore, Served
from ._work import Work

_MOST_RANKS = 65536
_TIMEOUT = 1800.0  # seconds, as the library's
_OF_TORCH = ("side_step", "staging")
_OPTIONS = tuple(each.name for each in fields(OptionFields) if each.name not in _OF_TORCH)
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def unique_id() -> bytes:
    """Makes an id by which ranks meet, and opens their meeting point in this process.

    Rank 0 makes it and hands it to the others by any means. It holds a secret: keep it private.

    Returns:
        128 bytes, for goccl.numpy.init() of all ranks.

    Raises:
        ValueError, goccl.Error: there is no address to listen at.

    >>> made = MPI.COMM_WORLD.bcast(goccl.numpy.unique_id() if rank == 0 else None)
    >>> comm = goccl.numpy.init(rank, size, unique_id=made)
    """
    made = ctypes.create_string_buffer(_capi.UNIQUE_ID_SIZE)
    _capi.check(_capi.library().goccl_get_unique_id(made))
    return made.raw


def init(
    rank: int | None = None,
    size: int | None = None,
    *,
    unique_id: bytes | None = None,
    store: KeyValueStore | None = None,
    address: str | None = None,
    group_name: str = "",
    reconfigurable: bool = False,
    **options: Any,
) -> Communicator:
    """Makes a communicator. All ranks call it, and it waits for all.

    Where neither rank nor size is given they come from torchrun, Open MPI, MPICH, Intel MPI or
    Slurm; without any of these the process is rank 0 of 1. Ranks then meet at rank 0, by the
    variables MASTER_ADDR and MASTER_PORT, for which most launchers need not be told; or at the etcd
    of GOCCL_STORE. One of `unique_id`, `store` and `address` names another way.

    Args:
        rank: 0 to size - 1.
        size: how many ranks there are.
        unique_id: of unique_id(), which rank 0 has called.
        store: a key-value store that all ranks share, as one of torch's.
        address: "host:port", where rank 0 listens while the communicator is made.
        group_name: tells communicators of one job apart, in texts too.
        reconfigurable: wait for nobody. Members come by Communicator.reconfigure().
        **options: fields of goccl.Options but for `side_step` and `staging`. The timeout may be in
            seconds.

    Returns:
        The communicator.

    Raises:
        TypeError, ValueError: an argument, or a variable of the environment, is wrong.
        goccl.OperationTimeoutError: ranks did not come: it names them.
        goccl.MismatchError: ranks have different sizes, settings or secrets, or the same number.
        goccl.Error: rank 0 cannot listen, or cannot be reached.

    >>> comm = goccl.numpy.init(timeout=60)
    """
    config, chosen = _config(group_name, options)
    closes: list[Any] = []
    try:
        if reconfigurable:
            config.reconfigurable = 1
        else:
            place = _place(rank, size, address, unique_id is not None or store is not None)
            config.rank, config.size = place.rank, place.size
            if unique_id is not None and store is not None:
                raise ValueError("unique_id and store are both given, one of them is allowed")
            if unique_id is not None:
                config.unique_id = read_id(unique_id)
            elif place.host and store is None:
                config.store_host = place.host.encode()
                store = _meet(place, chosen, closes)
        served = None if store is None else Served(store)
        if served:
            config.store = ctypes.pointer(served.struct)
        return _make("init", (config, served), ctypes.byref(config))
    finally:
        for each in closes:
            each.close()


def join(
    handles: Iterable[str] = (),
    *,
    unique_id: bytes | None = None,
    store: KeyValueStore | None = None,
    group_name: str = "",
    **options: Any,
) -> Communicator:
    """Makes this process a member of a communicator that exists.

    It waits until the members let it in, by Communicator.recover() or grow().

    Args:
        handles: of members, by Communicator.handle; one whose process lives is enough. Without any
            they come from GOCCL_JOIN, or a member is found where Communicator.publish() has written
            it: at the etcd of GOCCL_STORE, in `store`, or by `unique_id`.
        unique_id: as that of publish().
        store: as that of publish().
        group_name: of the communicator.
        **options: as of init(): those of the members.

    Returns:
        The communicator.

    Raises:
        TypeError, ValueError: an argument is wrong.
        goccl.PeerFailedError: no process of the handles is there any more.
        goccl.OperationTimeoutError: no member was found, or nobody let it in.
        goccl.Error: it has failed.
    """
    config, _ = _config(group_name, options)
    if unique_id is not None:
        config.unique_id = read_id(unique_id)
    served = None if store is None else Served(store)
    if served:
        config.store = ctypes.pointer(served.struct)
    texts, number = _texts("handles", handles)
    return _make("join", (config, served), ctypes.byref(config), texts, number)


def _make(name: str, keep: object, *arguments: Any) -> Communicator:
    comm, work = ctypes.c_uint64(), ctypes.c_uint64()
    start = getattr(_capi.library(), f"goccl_comm_{name}_async")
    _capi.check(start(ctypes.byref(comm), *arguments, ctypes.byref(work)))
    Work(work.value, (comm, keep), None, "made").wait()
    return Communicator(comm.value)


def _config(group_name: str, options: dict[str, Any]) -> tuple[_capi.Config, OptionFields]:
    """Reads the options, as C and as they are."""
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"{name} is no option, allowed are {', '.join(_OPTIONS)}")
    timeout = options.get("timeout")
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        options = {**options, "timeout": timedelta(seconds=timeout)}
    chosen = OptionFields(**options)
    config = _capi.Config(group_name=_text("group_name", group_name))
    for name in _OPTIONS:
        value = getattr(chosen, name)
        if isinstance(value, timedelta):
            setattr(config, f"{name}_ms", value // timedelta(milliseconds=1))
        elif name == "interface":
            config.interface_ = value.encode() or None
        elif name == "ib_gid_index":
            config.ib_gid_index = None if value is None else str(value).encode()
        elif isinstance(value, str):
            setattr(config, name, value.encode() or None)
        elif value is not None:
            setattr(config, name, value)
    return config, chosen


def _place(rank: int | None, size: int | None, address: str | None, meets: bool) -> Place:
    """Finds which rank this is, and where the ranks meet; the host is "" where that is elsewhere.

    Args:
        rank, size, address: what the caller has given.
        meets: whether it has given a way to meet, too.
    """
    environ = os.environ
    elsewhere = meets or bool(_capi.getenv("GOCCL_STORE"))
    if rank is None and size is None:
        found = _launch.find(environ, host=not elsewhere and address is None)
        place = found or Place(0, 1, "", 0)
    elif rank is None or size is None:
        raise ValueError(f"rank is {rank!r} and size is {size!r}: give both, or neither")
    else:
        size = _int("size", size)
        if not 1 <= size <= _MOST_RANKS:
            raise ValueError(f"size is {size}, allowed are 1 to {_MOST_RANKS}")
        rank = _int("rank", rank)
        if not 0 <= rank < size:
            raise ValueError(f"rank is {rank}, allowed are 0 to {size - 1}")
        place = Place(rank, size, "", 0)
        if size > 1 and not elsewhere and address is None:
            if "MASTER_ADDR" not in environ or "MASTER_PORT" not in environ:
                raise ValueError(
                    "unique_id, store and address are missing, as are the variables MASTER_ADDR "
                    "and MASTER_PORT: one of them names where ranks meet"
                )
            host = environ["MASTER_ADDR"]
            place = Place(rank, size, host, _port("MASTER_PORT", environ["MASTER_PORT"]))
    if place.size == 1 or elsewhere:
        return Place(place.rank, place.size, "", 0)
    if address is not None:
        host, colon, port = address.rpartition(":")
        if not host or not colon:
            raise ValueError(f'address is {address!r}, it must be as "host:29500"')
        return Place(place.rank, place.size, host.strip("[]"), _port("the port of address", port))
    return place


def _port(name: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ValueError(f"{name} is {text!r}, allowed are 1 to 65535")
    return int(text)


def _meet(place: Place, options: OptionFields, closes: list[Any]) -> KeyValueStore:
    """Returns the store of a job, which rank 0 opens unless the launcher has. What is to be closed
    comes into the list."""
    timeout = options.timeout.total_seconds() if options.timeout else _limit()
    if place.served:
        dist: Any = importlib.import_module("torch.distributed")
        store = dist.TCPStore(
            place.host, place.port, is_master=False, timeout=timedelta(seconds=timeout)
        )
        return dist.PrefixStore("goccl.numpy", store)  # type: ignore[no-any-return]
    key = key_of(options.secret or _capi.getenv("GOCCL_SECRET"))
    made: Server | Client
    if place.rank == 0:
        made = Server(place.host, place.port, key)
    else:
        made = Client(place.host, place.port, place.rank, key, timeout)
    closes.append(made)
    return made


def _limit() -> float:
    """Seconds that GOCCL_TIMEOUT gives. What is wrong with it the library says."""
    text = _capi.getenv("GOCCL_TIMEOUT")
    parts = re.findall(r"(\d+(?:\.\d*)?)(ms|h|m|s)", text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts) or _TIMEOUT
