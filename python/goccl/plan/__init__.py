"""Collectives of your own: programs.

A program says which chunks of data move where, for all ranks and in one order. There are no signals
and no waits to get wrong: goccl finds messages, and what may run at once, from the order.

    from goccl import plan

    def two_shot(n: int) -> plan.Program:
        p = plan.Program("two_shot", plan.AllReduce(), ranks=n, chunks=n, scratch=n)
        for me in p.ranks:
            for other in me.others:
                p.copy(other.scratch[me], me.input[other])
        for me in p.ranks:
            mine = [me.input[me] if r is me else me.scratch[r] for r in p.ranks]
            p.reduce([me.output[me]] + [r.output[me] for r in me.others], mine)
        return p

    p = two_shot(4)
    print(p.verify())
    p.save("two_shot.json")
    plan.register(p)             # from then on dist.all_reduce() of the default group uses it

Data is cut into chunks. Of `AllReduce`, `Reduce` and `Broadcast` input and output are `chunks`
chunks each. Of the others a block is `chunks` chunks, and what has a block for each rank is as many
blocks, in the order of ranks: the output of `AllGather` and `Gather`, the input of `ReduceScatter`
and `Scatter`, both of `AllToAll`. Of `Custom` they are what it says.
"""

from goccl.plan._collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Custom,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
)
from goccl.plan._program import Chunks, Facts, Memory, Program, Rank, builtin, load
from goccl.plan._run import register, run, unregister

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Broadcast",
    "Chunks",
    "Collective",
    "Custom",
    "Facts",
    "Gather",
    "Memory",
    "Program",
    "Rank",
    "Reduce",
    "ReduceScatter",
    "Scatter",
    "builtin",
    "load",
    "register",
    "run",
    "unregister",
]
