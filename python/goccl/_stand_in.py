"""Has goccl serve groups that name no backend, or that name Gloo."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from goccl import _capi, _log
from goccl._stay_out import stay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

DEFAULT = "GOCCL_DEFAULT"
REPLACE = "GOCCL_REPLACE_GLOO"
INTERFACES = "GLOO_SOCKET_IFNAME"
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"

_GLOO = "gloo"
_UNDEFINED = "undefined"
_BY_ITSELF = timedelta(minutes=30)  # the timeout that torch gives where the program gives none
_THREADS = 2  # of Gloo, where the program asks for no other number
_LOOK_AFTER = 5.0  # seconds for which ranks may be late as a matter of course
_LOOK_EVERY = 1.0
_LINGER = 5.0  # longer than goccl._stay_out takes
# What this module relies on, in the order of the parameters of torch's function.
_PARAMETERS = (
    "group_size",
    "group_rank",
    "global_ranks_in_group",
    "backend",
    "store",
    "group_name",
    "backend_options",
)
_LOGGER = logging.getLogger("goccl")

_lock = threading.Lock()
_wrapped = False
_replaced = ""  # by what Gloo is replaced; "" where it is not
_told: set[str] = set()


class _Asked(threading.local):
    """What the group is asked for as that this thread makes; "" where goccl stands in for none."""

    name = ""


_asked = _Asked()


def use_by_default() -> None:
    """Makes goccl the backend of groups on the CPU for which no backend is named.

    That is `init_process_group()` without a backend, `init_device_mesh()`, and frameworks that ask
    torch for its default. Groups asked for by name are made as before. Call it on all ranks, before
    the first group is made; `GOCCL_DEFAULT=1` does the same when torch is imported. A call sets the
    variable for child processes. Groups that exist stay as they are, with a RuntimeWarning. It is
    harmless to repeat, from any thread.

    Raises:
        RuntimeError: this torch makes groups in a way that goccl does not know.

    >>> goccl.use_by_default()
    >>> dist.init_process_group()
    """
    _use_by_default()
    os.environ[DEFAULT] = "1"


def replace_gloo() -> None:
    """Makes goccl serve all groups that are asked for as "gloo".

    That is `init_process_group("gloo")`, `"cpu:gloo,cuda:nccl"`, `new_group(backend="gloo")`,
    device meshes, and all that frameworks make so. `get_backend()` still says "gloo" of them.
    `goccl.describe(group).stands_in_for` and `goccl info` tell. Who makes an object of torch's
    class ProcessGroupGloo gets Gloo. Call it on all ranks, before the first group is made;
    `GOCCL_REPLACE_GLOO=1` does the same when torch is imported. A call sets the variable for child
    processes. Groups that exist stay as they are, with a RuntimeWarning. It is harmless to repeat,
    from any thread.

    Raises:
        RuntimeError: this torch makes groups in a way that goccl does not know.

    >>> goccl.replace_gloo()
    >>> dist.init_process_group("gloo")
    >>> dist.get_backend(), goccl.describe().stands_in_for
    ('gloo', 'gloo')
    """
    _replace_gloo("goccl.replace_gloo()")
    os.environ[REPLACE] = "1"


def read_environment() -> None:
    """Does what the variables ask for; called when torch has been imported.

    Raises:
        ValueError: a variable has another value than "1", "0" and "".
        RuntimeError: as replace_gloo().
    """
    asked = [is_set(os.environ, name) for name in (DEFAULT, REPLACE)]
    if asked[0]:
        _use_by_default()
    if asked[1]:
        _replace_gloo(REPLACE)


def warnings_of(environ: Mapping[str, str]) -> list[str]:
    """What keeps the variables from having the effect that they are set for, in words.

    Args:
        environ: the environment.
    """
    told = []
    for name in (DEFAULT, REPLACE):
        try:
            asked = is_set(environ, name)
        except ValueError as error:
            told.append(f"{error}; it has no effect")
            continue
        if asked and environ.get(_AUTOLOAD) == "0":
            told.append(
                f"{name} is read by programs only that import goccl before they make groups: "
                f"{_AUTOLOAD}=0 keeps torch from doing so"
            )
    return told


def is_set(environ: Mapping[str, str], name: str) -> bool:
    """Reads a variable of this module.

    Args:
        environ: the environment.
        name: of the variable.

    Returns:
        Whether it is "1".

    Raises:
        ValueError: its value is not allowed.
    """
    value = environ.get(name, "")
    if value not in ("", "0", "1"):
        raise ValueError(f'{name} is {value!r}, allowed are "1", "0" and ""')
    return bool(value == "1")


def replaced_by() -> str:
    """Tells by what Gloo is replaced in this process: a variable or a call; "" where it is not."""
    return _replaced


def _use_by_default() -> None:
    from torch.distributed import Backend

    if Backend.default_device_backend_map["cpu"] == "goccl":
        return
    _wrap()
    _warn_of_groups("goccl is the default of later groups only")
    Backend.default_device_backend_map["cpu"] = "goccl"


def _replace_gloo(by: str) -> None:
    global _replaced
    if _replaced:
        _LOGGER.debug("goccl stands in for gloo already, by %s", _replaced)
        return
    _wrap()
    _warn_of_groups("goccl stands in for gloo in later groups only")
    _replaced = by


def _warn_of_groups(what: str) -> None:
    import torch.distributed.distributed_c10d as c10d

    if names := sorted(c10d._world.pg_names.values()):
        text = f"{what}: {len(names)} exist already ({', '.join(map(repr, names[:8]))})"
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def _wrap() -> None:
    """Replaces torch's function that makes every group, at the first call only.

    It is replaced in all modules that have imported it.

    Raises:
        RuntimeError: it is not as this module knows it.
    """
    global _wrapped
    import torch
    import torch.distributed.distributed_c10d as c10d

    with _lock:
        if _wrapped:
            return
        original = getattr(c10d, "_new_process_group_helper", None)
        found = list(inspect.signature(original).parameters) if callable(original) else []
        if tuple(found[: len(_PARAMETERS)]) != _PARAMETERS or not hasattr(c10d, "_world"):
            raise RuntimeError(
                f"goccl cannot stand in for another backend: torch {torch.__version__} makes groups"
                " in a way that this goccl does not know; name the backend: "
                'init_process_group("goccl")'
            )
        _put(c10d, "_new_process_group_helper", _wrapper)
        _put(c10d, "split_group", _splitter)
        _wrapped = True


def _put(c10d: ModuleType, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Replaces a function of torch in all modules that have imported it."""
    original = getattr(c10d, name)
    wrapper = make(original)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            setattr(module, name, wrapper)


def _splitter(original: Any) -> Callable[..., Any]:
    """Makes the function that stands where torch's `split_group` did: options of Gloo are taken as
    those of goccl."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def split_group(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        options = call.arguments.get("pg_options")
        if options is not None and stands_in_for(call.arguments.get("parent_pg")):
            call.arguments["pg_options"] = options_of(options)
        return original(*call.args, **call.kwargs)

    return split_group


def _wrapper(original: Any) -> Callable[..., Any]:
    """Makes the function that stands where torch's `_new_process_group_helper` did.

    It has torch make a group of goccl, and then enters the group under the name that the program
    gave: code that asks for the name goes on as before, and so do groups that inherit it.
    """
    import torch.distributed.distributed_c10d as c10d

    signature = inspect.signature(original)

    @functools.wraps(original)
    def new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        name = str(call.arguments["backend"])
        named, served = _served(name)
        if served == name:
            return original(*args, **kwargs)
        before = set(c10d._world.pg_map)
        call.arguments["backend"] = served
        _asked.name = _GLOO if _GLOO in named.values() else _UNDEFINED
        try:
            made = original(*call.args, **call.kwargs)
        finally:
            _asked.name = ""
        group, store = made
        if group in c10d._world.pg_map and group not in before:
            c10d._world.pg_map[group] = (name, store)
            c10d._world.pg_backend_config[group] = ",".join(
                f"{device}:{backend}" for device, backend in named.items()
            )
        return made

    return new_process_group_helper


def _served(name: str) -> tuple[dict[str, str], str]:
    """Reads the name of a backend as torch does.

    Args:
        name: as of init_process_group(): "gloo", "undefined", "cpu:gloo,cuda:nccl".

    Returns:
        The backend of each device, as it is asked for, and the name of what is to be made.
    """
    from torch.distributed.distributed_c10d import BackendConfig

    ours = ("goccl", _GLOO) if _replaced else ("goccl",)
    if name != _UNDEFINED and not (_replaced and _GLOO in name.lower()):
        return {}, name
    config: Any = BackendConfig(name)
    named: dict[str, str] = {d: str(b) for d, b in config.get_device_backend_map().items()}
    if not any(backend in ours for backend in named.values()):
        return named, name
    if ":" not in name and "cpu" in named:
        return named, "goccl"  # older versions of torch take the first device only from a list
    served = {device: "goccl" if b in ours else b for device, b in named.items()}
    return named, ",".join(f"{device}:{backend}" for device, backend in served.items())


def asked_for() -> str:
    """Tells as what this thread's group is asked for while it is made: "gloo", "undefined", or ""
    where goccl is named."""
    return _asked.name


def stands_in_for(group: Any) -> str:
    """Tells whether goccl serves a group that is asked for as Gloo: "gloo", else "".

    Args:
        group: a process group of torch or its backend of goccl; None for the default group.
    """
    import torch.distributed.distributed_c10d as c10d

    group = group or c10d.GroupMember.WORLD
    for known, config in c10d._world.pg_backend_config.items():
        for pair in config.split(","):
            device, _, backend = pair.partition(":")
            if backend != _GLOO or device not in {d.type for d in known._device_types}:
                continue
            served = _unwrapped(known, device)
            if (known is group or served is group) and _is_ours(served):
                return _GLOO
    return ""


def _unwrapped(group: Any, device: str) -> Any:
    import torch

    backend = group._get_backend(torch.device(device))
    return getattr(backend, "wrapped_pg", backend)  # of TORCH_DISTRIBUTED_DEBUG=DETAIL


def _is_ours(backend: Any) -> bool:
    from goccl._native import load

    return isinstance(backend, load().ProcessGroupGoccl)


def options_of(options: Any) -> Any:
    """Turns options that are for another backend into what goccl takes of them.

    Gloo's timeout counts where it is not the default of torch. What else is set in them is told,
    once a process. Options of other backends are for the other devices of the group.

    Args:
        options: as the program has given them.

    Returns:
        A goccl.Options, or None.
    """
    import torch.distributed.distributed_c10d as c10d

    from goccl._native import load

    theirs = load().ProcessGroupGoccl.Options
    gloo = getattr(getattr(c10d, "ProcessGroupGloo", None), "_Options", None)
    if options is None or isinstance(options, theirs):
        return options
    if gloo is None or not isinstance(options, gloo):
        return None
    ignored = []
    if options._devices:
        ignored.append(f"_devices (the interfaces are those of {INTERFACES})")
    if options._threads != _THREADS:
        ignored.append("_threads")
    if ignored:
        _tell_once(f"goccl stands in for gloo, and takes no {' and no '.join(ignored)}")
    return None if options._timeout == _BY_ITSELF else theirs(timeout=options._timeout)


def interface_of(own: Any) -> str:
    """The interfaces of a group: its own ones, else those that are set for Gloo.

    Args:
        own: the group's goccl.Options.
    """
    names = os.environ.get(INTERFACES, "")
    if own.interface or not names or _capi.getenv("GOCCL_SOCKET_IFNAME"):
        return str(own.interface)
    return f"={names}"  # Gloo takes whole names


def _tell_once(text: str) -> None:
    with _lock:
        if text in _told:
            return
        _told.add(text)
    _LOGGER.warning("%s", text)


def tell_of(group: Any) -> None:
    """Logs that goccl stands in, and what is set for Gloo and has no effect.

    Args:
        group: torch's description of the group that is made.
    """
    if _asked.name == _GLOO:
        text = f"goccl stands in for gloo, by {_replaced or 'the default'}"
    else:
        text = "goccl is the default backend, and none is named"
    _log.inform(text, group.group_id, group.group_rank)
    if (device := os.environ.get("GLOO_DEVICE_TRANSPORT", "")) not in ("", "TCP"):
        _tell_once(
            f"goccl stands in for gloo, and GLOO_DEVICE_TRANSPORT={device} has no effect: "
            "what goccl sends is not encrypted"
        )


@contextlib.contextmanager
def watch(group: Any) -> Iterator[None]:
    """While a group is made, looks whether other ranks make it with Gloo itself.

    Neither library would ever meet the other. After some seconds in which the group is not made,
    a thread looks for what Gloo writes into the group's store. If there is such a rank, the thread
    tells the ranks of goccl in its name that it stays out (goccl._stay_out), so that all of them
    fail with one error that names it. The lowest rank of goccl does so: the ranks below it are
    Gloo's.

    Args:
        group: torch's description of the group.
    """
    done = threading.Event()
    looker = threading.Thread(target=_look, args=(group, done), daemon=True)
    try:
        looker.start()
    except RuntimeError:  # there are no threads to be had: ranks wait for their timeout
        yield
        return
    try:
        yield
    finally:
        done.set()
        looker.join(_LINGER)  # it uses the store, which the program may destroy


def _look(group: Any, done: threading.Event) -> None:
    pause = _LOOK_AFTER
    of = list(group.global_ranks_in_group)  # none, where they are the same
    with contextlib.suppress(Exception):  # of a store that does not work, which others tell
        while not done.wait(pause):
            pause = _LOOK_EVERY
            lower = range(group.group_rank)
            if not all(_is_gloo(group.store, rank) for rank in lower):
                continue
            higher = range(group.group_rank + 1, group.group_size)
            gloo = [*lower, *(rank for rank in higher if _is_gloo(group.store, rank))]
            if gloo:
                stay_out(group.store, gloo[0], group.group_size, group.group_id, _why(gloo, of))


def _is_gloo(store: Any, rank: int) -> bool:
    """Whether a rank has written the first keys of Gloo into the store: its address, or, in older
    versions, its host before that."""
    return bool(store.check([f"0/{rank}"]) or store.check([f"0/rank_{rank}"]))


def _why(gloo: list[int], of: list[int]) -> str:
    """Why there is no group.

    Args:
        gloo: the ranks of Gloo in the group.
        of: the global rank of each rank of the group; empty where they are the same.
    """
    known = [of[rank] for rank in gloo] if of else gloo
    who = _ranks(gloo) if known == gloo else f"global {_ranks(known)}"
    return (
        f"{who} {'has' if len(gloo) == 1 else 'have'} made this group with Gloo, for which goccl "
        f"stands in on other ranks: set {REPLACE} (or, for groups that name no backend, "
        f"{DEFAULT}) on all ranks or on none"
    )


def _ranks(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:32])) + (", ..." if len(numbers) > 32 else "")
    return f"rank{'' if len(numbers) == 1 else 's'} {shown}"
