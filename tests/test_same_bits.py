"""Same inputs, same ranks: the same bits on every rank, in every run, over every transport, however
the message is split, and wherever it lies in memory."""

import hashlib

import harness
import oracle
import pytest
import torch
import torch.distributed as dist

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.complex64,
]
COUNT = 300_007  # more than a chunk of every type, and odd


def digest(t):
    return hashlib.sha256(
        t.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    ).hexdigest()


def shapes_of(rank, dtype):
    """The digest of the reduced values, obtained in many ways."""
    given = harness.place(oracle.values(dtype, COUNT, rank.rank, "general"))
    found = {}

    t = given.clone()
    dist.all_reduce(t)
    found["all_reduce"] = digest(t)

    t = given.clone()
    dist.all_reduce(t)
    found["again"] = digest(t)

    for offset in (1, 3, 7):
        base = torch.empty(COUNT + offset, dtype=dtype, device=given.device)
        t = base[offset:]
        t.copy_(given)
        dist.all_reduce(t)
        found[f"offset {offset}"] = digest(t)

    base = torch.empty(2 * COUNT, dtype=dtype, device=given.device)
    t = base[::2]
    t.copy_(given)
    dist.all_reduce(t)
    found["strided"] = digest(t)

    for piece in (1000, 65536, 131072 + 5):
        t = given.clone()
        for part in t.split(piece):
            dist.all_reduce(part)
        found[f"pieces of {piece}"] = digest(t)

    t = given.clone()
    for w in [dist.all_reduce(part, async_op=True) for part in t.split(50_000)]:
        w.wait()
    found["asynchronous pieces"] = digest(t)

    if not dtype.is_complex:  # torch coalesces real tensors only
        t = given.clone()
        parts = list(t.split(70_001))
        with dist._coalescing_manager():
            for part in parts:
                dist.all_reduce(part)
        found["coalesced"] = digest(t)

    t = given.clone()
    root = rank.size - 1
    dist.reduce(t, root)
    dist.broadcast(t, root)
    found["reduce and broadcast"] = digest(t)

    n = rank.size
    padded = torch.zeros((COUNT + n - 1) // n * n, dtype=dtype, device=given.device)
    padded[:COUNT] = given
    out = torch.empty(padded.numel() // n, dtype=dtype, device=given.device)
    dist.reduce_scatter_tensor(out, padded)
    whole = torch.empty_like(padded)
    dist.all_gather_into_tensor(whole, out)
    found["reduce_scatter and all_gather"] = digest(whole[:COUNT])
    return found


def start(rank, on_device=False):
    if on_device:
        harness.use_device()
    rank.init()


@pytest.mark.parametrize("size", [2, 3, 5, pytest.param(8, marks=pytest.mark.slow)])
def test_same_bits(make_world, size):
    """Two runs on each transport, and one with tensors of a device; every rank, run, transport and
    way must agree, and with the oracle."""
    wanted = {}
    for dtype in DTYPES:
        given = [oracle.values(dtype, COUNT, r, "general") for r in range(size)]
        wanted[dtype] = digest(oracle.reduce(given, "SUM"))
    wrong = []
    runs = [(transport, False) for transport in 2 * harness.TRANSPORTS]
    if harness.DEVICE and size == 3:
        runs.append((harness.TRANSPORTS[0], True))
    for run, (transport, on_device) in enumerate(runs):
        world = make_world(size, env={"GOCCL_TRANSPORT": transport})
        world.run(start, on_device)
        for dtype, want in wanted.items():
            for r, found in enumerate(world.run(shapes_of, dtype)):
                wrong += [
                    f"{dtype}, {transport}, run {run}, rank {r}: other bits by {how}"
                    for how, bits in found.items()
                    if bits != want
                ]
        world.close()
    assert not wrong, "\n".join(wrong)


def subgroups_agree(rank, dtype):
    """The order is that of the ranks in the group, whatever their global numbers."""
    ranks = list(range(1, rank.size))
    group = dist.new_group(ranks)
    if rank.rank in ranks:
        t = oracle.values(dtype, 1000, rank.rank, "general")
        dist.all_reduce(t, group=group)
        want = oracle.reduce([oracle.values(dtype, 1000, r, "general") for r in ranks], "SUM")
        oracle.check(t, want, "all_reduce in a subgroup")
    dist.destroy_process_group(group) if rank.rank in ranks else None


def test_subgroup_order(make_world):
    world = make_world(4)
    world.run(start)
    for dtype in DTYPES:
        world.run(subgroups_agree, dtype)
