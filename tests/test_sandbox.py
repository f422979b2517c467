"""Hosts that do not allow what shared memory needs: ranks fall back to TCP by themselves, a forced
transport is an error that says why, and so does `goccl info`.

The size of /dev/shm is not among what is needed, and not tested: a memfd is on no mounted file
system.
"""

import contextlib
import ctypes
import errno
import io
import json
import os
import platform
import resource
import signal
import socket
import struct
from datetime import timedelta
from pathlib import Path

import goccl
import harness
import oracle
import pytest
import torch
import torch.distributed as dist
from goccl import _cli as cli

pytestmark = pytest.mark.skipif(harness.BACKEND != "goccl", reason="is about our shared memory")

# System calls: memfd_create, socket, socketpair, process_vm_readv.
NUMBERS = {"x86_64": (319, 41, 53, 310), "aarch64": (279, 198, 199, 270)}
WINDOW = "goccl-window"  # as /proc/self/maps shows shared memory of ranks
MEGABYTE = 1 << 20
NOBODY = 65534


def refuse(calls, error):
    """Has the kernel refuse system calls from here on, to this thread and to all that it starts:
    each of `calls` is a number, and the first argument with which it is refused or None for any."""
    load, jump_if_equal, answer = 0x20, 0x15, 0x06  # of classic BPF: LD W ABS, JMP JEQ K, RET K
    number_at, argument_at = 0, 16  # in struct seccomp_data
    allow, fail = 0x7FFF0000, 0x00050000 | error

    def step(code, operand, else_skip=0):
        return struct.pack("HBBI", code, 0, else_skip, operand)

    program = []
    for number, argument in calls:
        check = (
            []
            if argument is None
            else [step(load, argument_at), step(jump_if_equal, argument, else_skip=1)]
        )
        program += [
            step(load, number_at),
            step(jump_if_equal, number, else_skip=len(check) + 1),
            *check,
        ]
        program.append(step(answer, fail))
    program.append(step(answer, allow))

    code = ctypes.create_string_buffer(b"".join(program))
    filter_ = struct.pack("HP", len(program), ctypes.addressof(code))
    no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
    libc = ctypes.CDLL(None, use_errno=True)
    for request in ((no_new_privileges, 1, 0, 0, 0), (set_seccomp, mode_filter, filter_, 0, 0)):
        if libc.prctl(*request) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def without_memfd(error):
    memfd_create, *_ = NUMBERS[platform.machine()]
    refuse([(memfd_create, None)], error)
    with pytest.raises(OSError, match=os.strerror(error)):
        os.memfd_create("probe")


def without_unix_sockets(error):
    _, socket_, socketpair, _ = NUMBERS[platform.machine()]
    refuse([(socket_, socket.AF_UNIX), (socketpair, socket.AF_UNIX)], error)
    for attempt in (socket.socketpair, lambda: socket.socket(socket.AF_UNIX)):
        with pytest.raises(OSError, match=os.strerror(error)):
            attempt()


def without_reading(error):
    refuse([(NUMBERS[platform.machine()][3], None)], error)


def with_small_files(limit):
    """A limit that refuses windows, and some even the smallest memfd. The signal that tells of it
    ends most programs, but not those of Python."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


# What is restricted, how, what the reason says of it, and what of the remedy.
SANDBOXES = [
    pytest.param(
        without_memfd,
        errno.EPERM,
        "memfd_create",
        "operation not permitted",
        "seccomp",
        id="memfd EPERM",
    ),
    pytest.param(
        without_memfd, errno.ENOSYS, "memfd_create", "not implemented", "seccomp", id="memfd ENOSYS"
    ),
    pytest.param(
        without_unix_sockets,
        errno.EPERM,
        "socket",
        "operation not permitted",
        "seccomp",
        id="unix EPERM",
    ),
    pytest.param(
        without_unix_sockets, errno.ENOSYS, "socket", "not implemented", "seccomp", id="unix ENOSYS"
    ),
    pytest.param(
        with_small_files, MEGABYTE, "file size", str(MEGABYTE), "ulimit -f", id="files of 1 MiB"
    ),
    pytest.param(with_small_files, 0, "file size", "0 bytes", "ulimit -f", id="no files"),
]
sandboxes = pytest.mark.parametrize(("restrict", "how", "what", "why", "remedy"), SANDBOXES)


def shares_memory():
    return WINDOW in Path("/proc/self/maps").read_text()


def reduce_in_sandbox(rank, restricted, restrict, how):
    if rank.rank in restricted:
        restrict(how)
    rank.init(store="reduce")
    for n in (1, 5000, 700_001):
        inputs = [oracle.values(torch.float32, n, r, "general") for r in range(rank.size)]
        mine = inputs[rank.rank].clone()
        dist.all_reduce(mine)
        oracle.check(mine, oracle.reduce(inputs, "SUM"), f"{n} elements")
    dist.barrier()
    return shares_memory()


def init_in_sandbox(rank, restricted, restrict, how):
    if rank.rank in restricted:
        restrict(how)
    rank.init(timeout=20)


def info_in_sandbox(rank, restrict, how):
    restrict(how)
    printed = []
    for options in ([], ["--json"]):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert cli.main(["info", *options]) == 0
        printed.append(out.getvalue())
    return printed


def nothing(how):
    pass


def test_ranks_that_may_share_memory_do(make_world):
    """What the tests below are compared to."""
    assert make_world(2).run(reduce_in_sandbox, (), nothing, 0) == [True, True]


@pytest.mark.parametrize("restricted", [(0, 1), (0,)], ids=["both", "first"])
@sandboxes
def test_fallback_to_tcp(make_world, restrict, how, what, why, remedy, restricted):
    world = make_world(2, store="tcp")
    assert world.run(reduce_in_sandbox, restricted, restrict, how) == [False, False]


@sandboxes
def test_only_the_pairs_that_cannot_share_memory_use_tcp(
    make_world, restrict, how, what, why, remedy
):
    world = make_world(3, store="tcp")
    assert world.run(reduce_in_sandbox, (1,), restrict, how) == [True, False, True]


@pytest.mark.parametrize("restricted", [(0, 1), (1,)], ids=["both", "second"])
@sandboxes
def test_forced_shared_memory_is_an_error(make_world, restrict, how, what, why, remedy, restricted):
    world = make_world(2, store="tcp", env={"GOCCL_TRANSPORT": "shm"})
    for outcome in world.outcomes(init_in_sandbox, restricted, restrict, how):
        assert outcome.kind, "shared memory was forced, and cannot have worked"
        for part in (
            'transport "shm" cannot work',
            f"pid {world.pids[restricted[0]]}",
            what,
            why,
            remedy,
        ):
            assert part in outcome.error


@sandboxes
def test_info_says_why_and_what_to_do(make_world, restrict, how, what, why, remedy):
    world = make_world(1, store="tcp")
    text, report = world.run(info_in_sandbox, restrict, how)[0]
    transports = json.loads(report)["transports"]
    assert transports["tcp"]["usable"]
    assert not transports["shm"]["usable"]
    line = f"shm NOT usable: {transports['shm']['problem']} "
    assert line in " ".join(text.split())  # which wraps lines
    for part in (what, why, remedy, 'transport "tcp"'):
        assert part in line


def with_address_space(more, hard=None):
    """A limit on address space that leaves so many bytes, for good unless a hard limit is given."""
    limit = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0]) + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit if hard is None else hard))


def with_threads(more):
    """A limit on threads, which does not bind root."""
    if os.getuid() == 0:
        os.setresuid(NOBODY, NOBODY, NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (more, more))


def load_in_sandbox(rank, restrict, more):
    restrict(more)
    goccl.empty(1)


@pytest.mark.parametrize(
    ("restrict", "more", "what", "remedy"),
    [
        pytest.param(
            with_address_space, 256 * MEGABYTE, "address space", "ulimit -v", id="address space"
        ),
        pytest.param(with_threads, 1, "threads", "ulimit -u", id="threads"),
    ],
)
def test_too_little_to_load_the_library_is_an_error(make_world, restrict, more, what, remedy):
    world = make_world(1)
    outcome = world.outcomes(load_in_sandbox, restrict, more)[0]
    assert outcome.kind == "Error", outcome
    for part in (what, remedy):
        assert part in outcome.error


def share_in_little_address_space(rank):
    with_address_space(4096 * MEGABYTE)
    rank.init()
    mine = goccl.empty(1000).fill_(1)  # of an arena no larger than what the limit allows
    dist.all_reduce(mine)
    assert (mine == rank.size).all()
    torch.empty(1024 * MEGABYTE, dtype=torch.uint8)  # the arenas leave something


def test_shareable_memory_in_little_address_space(make_world):
    make_world(2).run(share_in_little_address_space)


def make_groups_with_small_files(rank, restricted):
    rank.init()
    check = torch.ones(1000)
    dist.all_reduce(check)
    if rank.rank in restricted:
        with_small_files(65536)
    error = ""
    try:
        dist.new_group(timeout=timedelta(seconds=60))
    except RuntimeError as e:
        error = str(e)
    mine = goccl.empty(1000).fill_(1)
    dist.all_reduce(mine)  # the group that was there goes on
    assert (mine == rank.size).all()
    return error


@pytest.mark.parametrize("restricted", [(1,), (0, 1, 2)], ids=["one rank", "all ranks"])
def test_small_files_after_init(make_world, restricted):
    """A new group fails on all ranks at once, and each is told whose limit it is."""
    world = make_world(3, env={"GOCCL_TRANSPORT": "shm"})
    for error in world.run(make_groups_with_small_files, restricted):
        for part in (*(f"rank {r} " for r in restricted), "ulimit -f", "65536"):
            assert part in error


def init_in_little_address_space(rank, restricted, more):
    """With enough to begin, and not for a group."""
    goccl.empty(1)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if rank.rank == restricted:
        with_address_space(more * MEGABYTE, limits[1])
    try:
        rank.init()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize(("restricted", "more"), [(0, 2), (1, 2), (1, 48)])
def test_too_little_address_space_for_a_group_is_told_to_all(make_world, restricted, more):
    world = make_world(3, env={"GOCCL_TRANSPORT": "shm"})
    for outcome in world.outcomes(init_in_little_address_space, restricted, more):
        for part in ("address space", "ulimit -v"):
            assert part in outcome.error, outcome
        assert outcome.rank == restricted or f"rank {restricted}: " in outcome.error, outcome


def move(rank, restricted, error):
    if rank.rank in restricted:
        without_reading(error)
    rank.init()
    me, size = rank.rank, rank.size
    for n in (1, 1000, 700_001):
        sent = {r: oracle.values(torch.float32, n * size, r, "general") for r in range(size)}
        out = torch.empty(n * size)
        dist.all_to_all_single(out, sent[me])
        assert torch.equal(out, torch.cat([sent[r][n * me : n * (me + 1)] for r in range(size)]))
        part = torch.empty(n)
        dist.scatter(part, list(sent[1].split(n)) if me == 1 else None, src=1)
        assert torch.equal(part, sent[1][n * me : n * (me + 1)])
        received = torch.empty(n * size)
        works = [dist.isend(sent[me], (me + 1) % size), dist.irecv(received, (me - 1) % size)]
        for work in works:
            work.wait()
        assert torch.equal(received, sent[(me - 1) % size])
    dist.barrier()
    return shares_memory()


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS], ids=["EPERM", "ENOSYS"])
@pytest.mark.parametrize("restricted", [(), (0,), (0, 1, 2)], ids=["nobody", "first", "all"])
def test_ranks_that_may_not_read_memory_share_windows(make_world, restricted, error):
    world = make_world(
        3, env={"GOCCL_TRANSPORT": "shm", "GOCCL_THRESHOLDS": "get_min=1,send_get_min=1"}
    )
    assert world.run(move, restricted, error) == [True] * 3


def test_info_says_why_memory_cannot_be_read(make_world):
    text, report = make_world(1).run(info_in_sandbox, without_reading, errno.EPERM)[0]
    shm = json.loads(report)["transports"]["shm"]
    assert shm["usable"]
    for part in ("process_vm_readv", "operation not permitted", "seccomp"):
        assert part in shm["long_blocks"]
        assert part in text


def links_with_few_descriptors(rank):
    few, hard = 256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    rank.init()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 1 << 20), hard)
    with contextlib.ExitStack() as links:
        for _ in range(min(1000, hard // 2 - 100)):  # as many pairs
            for end in socket.socketpair():
                links.enter_context(end)
        tensor = torch.ones(4)
        dist.all_reduce(tensor)  # makes a link
        assert tensor.tolist() == [2.0] * 4


def test_the_soft_limit_on_open_files_is_raised(make_world):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] <= 512:
        pytest.skip("the hard limit is low")
    make_world(2).run(links_with_few_descriptors)
