"""GOCCL_ALGO and goccl.algorithm(): what is forced runs, by every way through the library, and
gives the same as NumPy. Real processes."""

import re

import goccl
import harness
import numpy as np
import pytest
import torch
import torch.distributed as dist

COUNTS = (1, 999, 70_001)

# What 3 ranks of one host can run over shared memory, and over TCP. Single copies need leave of the
# kernel.
FORCED = {
    "shm": (
        "allreduce:one_shot;reduce:flat;broadcast:flat;allgather:linear;alltoall:linear",
        (
            "allreduce:two_shot;reduce:reduce_scatter_gather;broadcast:binomial_tree;"
            "allgather:multicast"
        ),
        "broadcast:multicast;reduce_scatter:linear;gather:flat;scatter:flat",
        "broadcast:scatter_allgather",
        (
            "allreduce:direct;reduce:direct;broadcast:direct;allgather:direct;"
            "reduce_scatter:direct;alltoall:direct"
        ),
    ),
    "tcp": (
        "allreduce:two_shot;broadcast:binomial_tree;alltoall:pairwise;scatter:windowed",
        "allreduce:one_shot;broadcast:scatter_allgather;alltoall:linear;scatter:flat",
    ),
}


def numbers(rank, n):
    """What a rank gives of n elements: small whole numbers, whose sums are exact in any order."""
    return np.random.default_rng([rank, n]).integers(-99, 99, n).astype(np.float32)


def run_forced(rank, forced):
    rank.init()
    assert goccl.describe().algorithms == ";".join(sorted(forced.split(";"), key=order))
    wanted = dict(item.split(":") for item in forced.split(";"))
    size, me = rank.size, rank.rank
    make = goccl.empty if "allreduce:direct" in forced else torch.empty
    dist.barrier()  # no direct plan runs before ranks are connected
    dist.all_gather_into_tensor(torch.empty(size), torch.ones(1))

    def tensor(values):
        made = make(len(values))
        made.copy_(torch.from_numpy(values))
        return made

    for n in COUNTS:
        every = [numbers(r, n * size) for r in range(size)]
        parts = [values.reshape(size, n) for values in every]
        total = sum(every)
        calls = {
            "allreduce": (lambda i, _: dist.all_reduce(i), total, None),
            "reduce": (lambda i, _: dist.reduce(i, 1), total if me == 1 else None, None),
            "broadcast": (lambda i, _: dist.broadcast(i, 1), every[1], None),
            "allgather": (
                lambda i, o: dist.all_gather_into_tensor(o, i),
                np.concatenate(every),
                size * size,
            ),
            "reduce_scatter": (
                lambda i, o: dist.reduce_scatter_tensor(o, i),
                total[me * n :][:n],
                1,
            ),
            "alltoall": (
                lambda i, o: dist.all_to_all_single(o, i),
                np.concatenate([part[me] for part in parts]),
                size,
            ),
            "gather": (
                lambda i, o: dist.gather(i, list(o.chunk(size)) if me == 1 else None, 1),
                np.concatenate(every) if me == 1 else None,
                size * size,
            ),
            "scatter": (
                lambda i, o: dist.scatter(o, list(i.chunk(size)) if me == 1 else None, 1),
                parts[1][me],
                1,
            ),
        }
        for name, (call, want, blocks) in calls.items():
            for turn in range(3):  # the later ones by other ways through the library
                given = tensor(every[me])
                out = given if blocks is None else make(blocks * n)
                call(given, out)
                if want is not None:
                    assert (out.numpy() == want).all(), (
                        f"{forced}: {name}, {n} elements, turn {turn}"
                    )
                ran, may = goccl.algorithm(), wanted.get(name)
                assert ran, f"{name} ran by nothing"
                if may and not (may == "direct" and n < COUNTS[-1]):
                    assert ran == may, f"{name}, {n} elements, turn {turn}"


def order(item):
    """The place of a collective in the text that all ranks compare."""
    names = (
        "allreduce",
        "reduce",
        "broadcast",
        "allgather",
        "reduce_scatter",
        "gather",
        "scatter",
        "alltoall",
    )
    return names.index(item.split(":")[0])


@pytest.mark.parametrize("transport", harness.TRANSPORTS)
def test_forced(make_world, transport):
    for forced in FORCED[transport]:
        make_world(3, env={"GOCCL_TRANSPORT": transport, "GOCCL_ALGO": forced}).run(
            run_forced, forced
        )


def run_averaged(rank, algorithm):
    """Averages and sums of bfloat16, by turns, have the bits that rounding once gives."""
    rank.init()
    every = [torch.from_numpy(numbers(r, 1000)).mul(1 + 2**-9).bfloat16() for r in range(rank.size)]
    total = every[0].float() + every[1].float()
    total += every[2].float() + every[3].float()  # all of it is exact in float32
    for turn in range(4):  # the later ones by other ways through the library
        for op, want in (
            (dist.ReduceOp.AVG, total / rank.size),
            (dist.ReduceOp.SUM, total),
            (dist._make_nccl_premul_sum(0.5), total / 2),
        ):
            given = every[rank.rank].clone()
            dist.all_reduce(given, op)
            assert (given == want.bfloat16()).all(), f"{algorithm}, {op}, turn {turn}"
            assert goccl.algorithm() == algorithm


@pytest.mark.parametrize("algorithm", ["hierarchical", "recursive_multiplying", "binomial_tree"])
def test_averages_in_levels(make_world, algorithm):
    make_world(4, env={"GOCCL_ALGO": f"allreduce:{algorithm}"}).run(run_averaged, algorithm)


def run_numbered(rank):
    rank.init()
    t = torch.ones(1)
    dist.all_reduce(t)
    dist.barrier()
    assert [goccl.algorithm(sequence=n) for n in (1, 2, 3)] == ["one_shot", "dissemination", ""]
    assert (
        goccl.algorithm(dist.group.WORLD)
        == goccl.algorithm(goccl.Communicator())
        == "dissemination"
    )
    for bad in (-1, 1.5, "1"):
        with pytest.raises(TypeError):
            goccl.algorithm(sequence=bad)
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        goccl.algorithm()


def test_by_number(make_world):
    make_world(2).run(run_numbered)


def run_refused(rank, error, text):
    with pytest.raises(error, match=re.escape(text)):
        rank.init()


@pytest.mark.parametrize(
    ("of", "error", "text"),
    [
        (
            ["allreduce:ring"] * 2,
            ValueError,
            '(from the option or GOCCL_ALGO) are "allreduce:ring", in which "ring" is no algorithm',
        ),
        (
            ["broadcast:multicast"] * 2,
            goccl.UnsupportedError,
            (
                "GOCCL_ALGO: broadcast:multicast cannot run in this group: broadcast by multicast "
                "needs more"
            ),
        ),
        (
            ["allreduce:one_shot", "allreduce:two_shot"],
            goccl.MismatchError,
            'GOCCL_ALGO) is "allreduce:one_shot" on rank 0 and "allreduce:two_shot" on rank 1',
        ),
    ],
)
def test_refused(make_world, of, error, text):
    make_world(2, rank_env={r: {"GOCCL_ALGO": value} for r, value in enumerate(of)}).run(
        run_refused, error, text
    )


def run_timeout(rank):
    rank.init()
    rank.limit(1)
    if rank.rank == 0:
        with pytest.raises(
            goccl.OperationTimeoutError,
            match=re.escape(
                "#1 allreduce(float32, 1000 elements, SUM) by two_shot: timeout after 1s"
            ),
        ):
            dist.all_reduce(torch.ones(1000))


def test_errors_name_it(make_world):
    make_world(2, env={"GOCCL_ALGO": "allreduce:two_shot"}).run(run_timeout)
