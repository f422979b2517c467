"""Puts, gets and signals: blocks go around a ring of ranks without a receive.

torchrun --standalone --nproc-per-node 2 examples/channels/ring.py
"""

import goccl
import torch
import torch.distributed as dist

BLOCK = 1 << 16  # numbers that each rank gives

dist.init_process_group("goccl")
comm = goccl.Communicator()
after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def block(rank: int) -> slice:
    return slice(rank * BLOCK, (rank + 1) * BLOCK)


def numbers(rank: int) -> torch.Tensor:
    return 1000.0 * rank + torch.arange(BLOCK) % 1000


blocks = goccl.zeros(comm.size * BLOCK)  # what peers reach is shareable memory
blocks[block(comm.rank)] = numbers(comm.rank)
mine = comm.register(blocks)
theirs = comm.exchange(mine)[after]  # of all ranks, by rank; it is sliced in elements
assert theirs is not None  # that rank has registered memory, too

# A channel's tag is the rank that puts: of two ranks each is the other's next and previous one.
with comm.channel(after, tag=comm.rank) as to, comm.channel(before, tag=before) as source:
    for step in range(comm.size - 1):  # each hands on the block that came last
        out, came = (comm.rank - step) % comm.size, (before - step) % comm.size
        to.put_signal(theirs[block(out)], blocks[block(out)])
        source.wait(timeout=5)
        assert torch.equal(blocks[block(came)], numbers(came))

    copy = torch.empty(BLOCK)  # any memory
    to.get(copy, theirs[block(after)])
    to.flush()
    assert torch.equal(copy, numbers(after))
    comm.barrier()  # no rank takes its memory back while another one may still read it

print(f"rank {comm.rank} has the blocks of {comm.size} ranks")
dist.destroy_process_group()
