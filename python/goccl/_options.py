"""The one definition of what can be set: options of a group, and environment variables.

The constructor and the attributes of goccl.Options, its type stub, the tables of the documentation
and `goccl info` are made from it. `python -m goccl._options` prints it as a table in Markdown.
"""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Literal, TypeAlias, get_args


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What an option, an environment variable, or both can set. The option wins.

    Attributes:
        option: the name of the option, "" where only the variable sets it.
        variable: the name of the environment variable, "" where only the option sets it.
        default: what holds where nothing is set, in words.
        allowed: the values that are allowed, in words.
        about: what it does, in one paragraph.
        same: all ranks must be given the same value.
    """

    option: str = ""
    variable: str = ""
    default: str
    allowed: str
    about: str
    same: bool = False


Transport: TypeAlias = Literal["", "shm", "tcp", "verbs"]
Quorum: TypeAlias = Literal["", "majority", "any"]
Recovery: TypeAlias = Literal["", "step", "survivors", "all"]


def _text(pattern: str) -> Callable[[str, object], object]:
    """Makes a check of a text; `pattern` is that of the whole of it."""

    def check(name: str, value: object) -> str:
        if not isinstance(value, str):
            raise TypeError(f"goccl.Options: `{name}` is {value!r}, it must be a str")
        if not re.fullmatch(pattern, value, re.ASCII):
            allowed = _SETTING[name].allowed
            raise ValueError(f"goccl.Options: `{name}` is {value!r}, allowed are {allowed}")
        return value

    return check


def _choice(choices: Any) -> Callable[[str, object], object]:
    """Makes a check of a text that is one of those of a Literal."""
    return _text("|".join(map(re.escape, get_args(choices))))


def _duration(name: str, value: object) -> timedelta:
    """Checks a duration, and rounds it up to milliseconds: a short one must not become 0."""
    also = " (or 0: the default)" if name == "liveness_grace" else ""
    if not isinstance(value, timedelta):
        raise TypeError(f"goccl.Options: `{name}` is {value!r}, it must be a datetime.timedelta")
    given = value // timedelta(microseconds=1)
    if given < 1000 and not (also and given == 0):
        raise ValueError(f"goccl.Options: `{name}` is {given} us, it must be at least 1 ms{also}")
    return timedelta(
        milliseconds=min(-(-given // 1000), timedelta.max // timedelta(milliseconds=1))
    )


def _int(*ranges: range) -> Callable[[str, object], int]:
    """Makes a check of an int that is in one of some ranges."""

    def check(name: str, value: object) -> int:
        if type(value) is not int:
            raise TypeError(f"goccl.Options: `{name}` is {value!r}, it must be an int")
        if not any(value in each for each in ranges):
            allowed = _SETTING[name].allowed
            raise ValueError(f"goccl.Options: `{name}` is {value}, allowed are {allowed}")
        return value

    return check


def _gid_index(name: str, value: object) -> int | None:
    return None if value is None else _int(range(256))(name, value)


def _timeout(name: str, value: object) -> timedelta | None:
    return None if value is None else _duration(name, value)


_DURATION = 'the variable takes a number with its unit, as "500ms", "30s", "10m" and "1h30m"'
_ANY_TEXT = _text(r"[^\0]*")


def _setting(check: Callable[[str, object], object], **words: Any) -> dict[str, Any]:
    return {"check": check, "words": words}


@dataclass(kw_only=True)
class OptionFields:
    """Options of a process group, given as pg_options to init_process_group() and new_group()."""

    timeout: timedelta | None = field(
        default=None,
        metadata=_setting(
            _timeout,
            variable="GOCCL_TIMEOUT",
            default="that of the group: 30 minutes, as in torch",
            allowed=f"None, or a timedelta of at least 1 ms; {_DURATION}",
            about="How long making the group and every operation may take. None is for the timeout"
            " of the group; before there is a group it reads as torch's default of 30 minutes. The"
            " variable holds where the program gives no timeout. One of 30 minutes counts as none:"
            " torch gives it by itself.",
        ),
    )
    transport: Transport = field(
        default="",
        metadata=_setting(
            _choice(Transport),
            variable="GOCCL_TRANSPORT",
            default="the best of each pair of ranks",
            allowed='"shm", "tcp", "verbs" and ""',
            about="What joins all ranks: shared memory, TCP or RDMA. A forced transport that"
            " cannot work is an error, never a silent change.",
            same=True,
        ),
    )
    interface: str = field(
        default="",
        metadata=_setting(
            _ANY_TEXT,
            variable="GOCCL_SOCKET_IFNAME",
            default="that of the route to the store",
            allowed='names, or what they begin with, as "eth,ib0"; "=" in front: whole names; "^":'
            ' all others; ""',
            about="The network interfaces to listen on, as in NCCL_SOCKET_IFNAME.",
        ),
    )
    liveness_grace: timedelta = field(
        default=timedelta(0),
        metadata=_setting(
            _duration,
            variable="GOCCL_LIVENESS_GRACE",
            default="10 seconds",
            allowed=f"a timedelta of at least 1 ms, or 0: the default; {_DURATION}",
            about="A host that acknowledges nothing for so long is given up.",
        ),
    )
    secret: str = field(
        default="",
        metadata=_setting(
            _ANY_TEXT,
            variable="GOCCL_SECRET",
            default="a random one, which rank 0 hands out through the store",
            allowed="any text without NUL, best 32 random bytes or more",
            about="What ranks must prove to know. Without it, processes that can reach the store"
            " can join. A secret shorter than 32 bytes is stretched, which takes some tenths"
            " of a second.",
            same=True,
        ),
    )
    alltoall_schedule: str = field(
        default="",
        metadata=_setting(
            _text(r"|sequential|parallel|window=0*([1-9]\d?|1\d\d|2[0-4]\d|25[0-4])"),
            variable="GOCCL_ALLTOALL_SCHEDULE",
            default="by size",
            allowed='"sequential", "window=1" to "window=254", "parallel" and ""',
            about="With how many ranks one exchanges at once in an all-to-all: with one, with so"
            " many at most, or with all. It bounds staging memory, and the senders to one"
            " rank.",
            same=True,
        ),
    )
    min_size: int = field(
        default=0,
        metadata=_setting(
            _int(range(65537)),
            variable="GOCCL_MIN_SIZE",
            default="1",
            allowed="1 to 65536, or 0: the default",
            about="With fewer members the group does not go on after a failure: see goccl.elastic.",
            same=True,
        ),
    )
    quorum: Quorum = field(
        default="",
        metadata=_setting(
            _choice(Quorum),
            variable="GOCCL_QUORUM",
            default="the majority",
            allowed='"majority", "any" and ""',
            about="Who goes on where members cannot reach each other: the majority, or any, with"
            " which several parts may go on apart.",
            same=True,
        ),
    )
    recovery: Recovery = field(
        default="",
        metadata=_setting(
            _choice(Recovery),
            variable="GOCCL_RECOVERY",
            default="step",
            allowed='"step", "survivors", "all" and ""',
            about="What becomes of a collective in which a member dies: it fails, or survivors"
            " complete it among themselves: allreduce, reduce, broadcast and barrier. All is"
            " another name of survivors.",
            same=True,
        ),
    )
    net: str = field(
        default="",
        metadata=_setting(
            _text("|tcp|verbs"),
            variable="GOCCL_NET",
            default="RDMA between hosts that have ports of one kind, else TCP",
            allowed='"tcp", "verbs" and ""',
            about="What joins ranks that share no memory.",
            same=True,
        ),
    )
    ib_hca: str = field(
        default="",
        metadata=_setting(
            _ANY_TEXT,
            variable="GOCCL_IB_HCA",
            default="all RDMA devices",
            allowed='names or what they begin with, as "mlx5_0,mlx5_1:2"; "=" in front: whole'
            ' names; "^": all others',
            about="The RDMA devices to choose from, as in NCCL_IB_HCA.",
        ),
    )
    ib_gid_index: int | None = field(
        default=None,
        metadata=_setting(
            _gid_index,
            variable="GOCCL_IB_GID_INDEX",
            default="RoCE v2's, of TCP's address where the port has that",
            allowed="0 to 255",
            about="The GID of the RDMA port.",
        ),
    )
    algorithms: str = field(
        default="",
        metadata=_setting(
            _ANY_TEXT,
            variable="GOCCL_ALGO",
            default="any",
            allowed="collectives with their algorithms, as "
            '"allreduce:two_shot;broadcast:flat,direct"; "^" in front: all others; radices in'
            " parentheses",
            about="The algorithms that collectives may use. One that cannot run in a group is an "
            "error.",
            same=True,
        ),
    )
    thresholds: str = field(
        default="",
        metadata=_setting(
            _ANY_TEXT,
            variable="GOCCL_THRESHOLDS",
            default="those built in",
            allowed='names with bytes, as "one_shot_max=16384,pipeline_min=0"',
            about="Sizes at which algorithms give way to others. `goccl tune` measures them.",
            same=True,
        ),
    )
    links: str = field(
        default="",
        metadata=_setting(
            _ANY_TEXT,
            variable="GOCCL_LINKS",
            default="those built in",
            allowed="kinds with latency, overhead and gap, as"
            ' "memory=250:100:100,tcp=15000:4000:320"',
            about="What messages cost, by which algorithms are chosen. `goccl tune` measures it.",
            same=True,
        ),
    )
    plans: str = field(
        default="",
        metadata=_setting(
            _ANY_TEXT,
            variable="GOCCL_PLANS",
            default="none",
            allowed="files with programs, and folders with files that end in .json or .xml, "
            "separated by colons",
            about="Programs that run the group's collectives which they fit, and those of the "
            "members after each change. They are read when the group is made.",
            same=True,
        ),
    )

    wire_dtype: str = field(
        default="",
        metadata=_setting(
            _text("|bfloat16|float16"),
            variable="GOCCL_WIRE_DTYPE",
            default="their own",
            allowed='"bfloat16", "float16" and ""',
            about="As which dtype float32 travels in allreduce, reduce and reduce_scatter.",
            same=True,
        ),
    )
    side_step: str = field(
        default="",
        metadata=_setting(
            _ANY_TEXT,
            variable="GOCCL_SIDE_STEP",
            default="none",
            allowed='collectives with other backends of torch, as "alltoall:gloo;allreduce:nccl"; '
            "a backend alone is there for goccl.side_step()",
            about="The collectives that other backends do.",
            same=True,
        ),
    )
    staging: int = field(
        default=0,
        metadata=_setting(
            _int(range(1), range(128 << 20, (1 << 40) + 1)),
            variable="GOCCL_STAGING",
            default="256 MiB",
            allowed="bytes from 128 << 20 to 1 << 40, or 0: the default; the variable also takes a"
            ' number with K, M or G, as "512M"',
            about="How much pinned memory an operation on tensors of a device may have. One that"
            " needs more goes through it segment by segment.",
        ),
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            setattr(self, option.name, check(option.name, getattr(self, option.name)))


SIGNATURE = inspect.signature(OptionFields, eval_str=True)
"""That of the constructor of goccl.Options."""

OPTIONS = {option.name: option for option in fields(OptionFields)}
"""The fields of the options, by their names."""

_SETTING = {name: Setting(option=name, **o.metadata["words"]) for name, o in OPTIONS.items()}

SETTINGS: tuple[Setting, ...] = (
    *_SETTING.values(),
    Setting(
        variable="GOCCL_DEFAULT",
        default="off",
        allowed='"1", "0" and ""',
        about="goccl is the backend of groups on the CPU that name none, as by"
        " goccl.use_by_default(). It is read when torch is imported.",
        same=True,
    ),
    Setting(
        variable="GOCCL_REPLACE_GLOO",
        default="off",
        allowed='"1", "0" and ""',
        about='goccl serves the groups that are asked for as "gloo", as by goccl.replace_gloo(). It'
        " is read when torch is imported.",
        same=True,
    ),
    Setting(
        variable="GOCCL_STORE",
        default="the store that the group is given",
        allowed='"etcd://host:port,host:port/prefix", with "etcds://" for TLS',
        about="The etcd at which ranks meet instead. All ranks of a job, and no others, use one"
        " prefix.",
        same=True,
    ),
    Setting(
        variable="GOCCL_CONF_FILE",
        default="none",
        allowed="the path of a file of lines NAME=value",
        about="A file of settings: what it gives to a variable holds where the environment does not"
        " set that. After it ~/.goccl.conf and /etc/goccl.conf are read. See [Files of"
        " settings](#files-of-settings).",
    ),
    Setting(
        variable="GOCCL_JOIN",
        default="those that are found at GOCCL_STORE, or in the group's store",
        allowed="handles of members, separated by commas",
        about="The members that a process asks which joins a group that exists, and is given no"
        " handles: see goccl.elastic.",
    ),
    Setting(
        variable="GOCCL_DUMP",
        default="none: nothing is written",
        allowed="what paths of files begin with; the rank in the job follows",
        about="Where each rank of a group that fails writes what it has done, for torchfrtrace.",
    ),
    Setting(
        variable="GOCCL_DUMP_SIGNAL",
        default="none",
        allowed="USR1 and USR2",
        about="A signal at which a process writes the same, for which the program has no handler.",
    ),
    Setting(
        variable="GOCCL_TRACE",
        default="none: nothing is written",
        allowed="a path, in which %h is the host, %p the process, %r its rank in the job, and %% a"
        " %",
        about="A file with the parts of all calls of a process, for Perfetto. Files of ranks that"
        " are put together by cat are one trace.",
    ),
    Setting(
        variable="GOCCL_METRICS_FILE",
        default="none: nothing is written",
        allowed="a path, in which %h is the host, %p the process, and %% a %",
        about="A file with what a process's groups have done, for node_exporter. It is replaced"
        " every 15 seconds, and removed when the last group has ended.",
    ),
    Setting(
        variable="GOCCL_METRICS_PORT",
        default="none: nothing is served",
        allowed='1 to 65535, or an address with a port, as in "0.0.0.0:9400" and "[::]:9400"',
        about="The port at which a process with groups serves the same as /metrics, for Prometheus:"
        " that of 127.0.0.1, or of the address. One process of a host can have it.",
    ),
    Setting(
        variable="GOCCL_DEBUG",
        default="WARN",
        allowed="NONE, VERSION, WARN, INFO and TRACE",
        about="What is logged: warnings, how each group is made and ends (INFO), each call and each"
        " link between processes (TRACE, which makes calls slower). Where Python's logging is"
        ' configured, it is the level of the logger "goccl", if the program gives that none.',
    ),
    Setting(
        variable="GOCCL_DEBUG_SUBSYS",
        default="ALL",
        allowed='ALL, or some of INIT, BOOTSTRAP, ENV, NET, COLL, P2P and MEM, as "INIT,NET"; '
        '"^" in'
        " front: all others",
        about="The subsystems whose records of INFO and TRACE are logged.",
    ),
    Setting(
        variable="GOCCL_DEBUG_FILE",
        default="no file: Python's logging where that is configured, else standard error",
        allowed="paths; %h stands for the host, %p for the process, %% for %",
        about="A file to which the log is appended.",
    ),
)
"""Everything that can be set: the options in their order, then what only a variable sets."""

VARIABLES = {setting.variable: setting for setting in SETTINGS if setting.variable}
"""The settings that an environment variable sets, by its name."""


def check(name: str, value: object) -> object:
    """Checks the value of an option.

    Args:
        name: of the option.
        value: what it is to be set to.

    Returns:
        The value as it is kept: durations are rounded up to milliseconds.

    Raises:
        TypeError: `value` is of another type.
        ValueError: `value` is not allowed; the text says what is.
    """
    return OPTIONS[name].metadata["check"](name, value)


def read(*unnamed: object, **given: Any) -> OptionFields:
    """Reads the arguments of the constructor of goccl.Options.

    Args:
        unnamed: values without names, which are refused.
        given: values by the names of options.

    Returns:
        The options, with defaults for what is not given.

    Raises:
        TypeError: there is no option of such a name, a value has no name, or is of another type.
        ValueError: a value is not allowed.
    """
    if unnamed:
        first = next(iter(OPTIONS))
        raise TypeError(f"goccl.Options: {unnamed[0]!r} has no name; give options as {first}=...")
    for name in given:
        if name not in OPTIONS:
            raise TypeError(_unknown(name))
    return OptionFields(**given)


def set_attribute(options: Any, name: str, value: object) -> None:
    """Sets an attribute of a goccl.Options.

    Args:
        options: the goccl.Options.
        name: of the attribute: an option, or what torch keeps in its options.
        value: what it is to be set to.

    Raises:
        AttributeError: there is no such attribute; the text names the nearest option. Instances of
            subclasses in Python have a __dict__, and take any.
        TypeError, ValueError: as check().
    """
    if not hasattr(type(options), name) and not hasattr(options, "__dict__"):
        raise AttributeError(_unknown(name))
    object.__setattr__(options, name, value)


def _unknown(name: str) -> str:
    nearest = difflib.get_close_matches(name, OPTIONS, n=1)
    guess = f" (did you mean `{nearest[0]}`?)" if nearest else ""
    return f"goccl.Options: there is no option `{name}`{guess}; known are {', '.join(OPTIONS)}"


def documentation(name: str) -> str:
    """Returns the docstring of an option."""
    setting = _SETTING[name]
    lines = [setting.about, f"Allowed: {setting.allowed}. Default: {setting.default}."]
    if setting.same:
        lines.append("The same on all ranks.")
    if setting.variable:
        lines.append(f"Also by the environment variable {setting.variable}.")
    return " ".join(lines)


def describe() -> str:
    """Returns the docstring of goccl.Options."""
    doc = [str(OptionFields.__doc__), "", "Args:"]
    for name in OPTIONS:
        text = textwrap.fill(f"{name}: {documentation(name)}", 92, subsequent_indent="    ")
        doc.append(textwrap.indent(text, "    "))
    doc += [
        "",
        "Raises:",
        "    TypeError: there is no option of such a name, or a value is of another type.",
        "    ValueError: a value is not allowed.",
    ]
    return "\n".join(doc)


def shown(variable: str, value: str) -> str:
    """Returns what may be told of the value of a variable.

    Args:
        variable: its name.
        value: its value.

    Returns:
        The value, with "(hidden)" for a secret, and for the user and password of a URL.
    """
    if value and difflib.get_close_matches(variable.upper(), ["GOCCL_SECRET"], cutoff=0.8):
        return "(hidden)"  # of a name that is mistyped, too
    return re.sub(r"^(\w+://)?[^/]*@", r"\1(hidden)@", value)


def markdown() -> str:
    """Returns all settings as a table in Markdown."""
    lines = ["| Option | Environment | Meaning | Allowed | Default |", "|---|---|---|---|---|"]
    for setting in SETTINGS:
        names = [f"`{name}`" if name else "" for name in (setting.option, setting.variable)]
        about = setting.about + (" The same on all ranks." if setting.same else "")
        cells = [*names, about, setting.allowed, setting.default]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
