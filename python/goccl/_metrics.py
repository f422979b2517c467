"""What groups have done, as numbers, and whom their ranks wait for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from goccl import _capi
from goccl._groups import describe_for
from goccl._native import load

if TYPE_CHECKING:
    from goccl._groups import Group

__all__ = ["Straggler", "stats", "stragglers"]


class Straggler(NamedTuple):
    """A rank, and how long others have waited for it in collectives.

    Attributes:
        rank: in the group.
        global_rank: in the job.
        host: its host's name.
        pid: of its process, as its own host numbers it.
        seconds: all other ranks together have waited for it.
        longest: seconds that one rank has waited for it, the most of all.
    """

    rank: int
    global_rank: int
    host: str
    pid: int
    seconds: float
    longest: float


def stats() -> dict[str, Any]:
    """Tells what this process's groups have done, those that have ended included.

    The same is told to Prometheus, in the file that GOCCL_METRICS_FILE names and at the port of
    GOCCL_METRICS_PORT. It waits for no collective, and may be called by any thread at any time.

    Returns:
        Numbers that only grow, but for those of which it is said that they are of now:

        - "version": of the library; "rank": of this process in the job now, -1 where it has no
          group; "groups": how many it has now.
        - "operations": of each "collective" ("send" and "recv", too) and "algorithm" the number
          "operations" of those that have ended well, their "bytes" of inputs or outputs, whichever
          are more, and "seconds". "took" has 15 numbers: how many took up to 1 us, up to 4 us, up
          to 16 us and so on up to 67 s, and how many took longer.
        - "transport_bytes": that were sent, or read from peers' memory, by transport.
        - "transport_wait_seconds": that collectives have waited for peers, by what joins this
          process to them. Waits of a microsecond or so are not counted.
        - "waits": the same by peer, the longest first, each with "group", "rank" in the job and
          "seconds". After 64 names of groups, those of others are "other".
        - "failures" of groups by kind, as "peer failed" and "timeout"; "failed_operations";
          "refusals" of collectives; "recoveries" of groups; "side_steps" by backend.
        - "staged_bytes": of collectives whose tensors went by way of other memory of the host.
        - "links": how many peers there are now, by transport.
        - "records": of calls that goccl.dump() would write now.
        - "memory": as goccl.memory_stats().

    Raises:
        goccl.Error: the library cannot be loaded.
        RuntimeError: this process is a forked child.

    >>> goccl.stats()["operations"][0]["collective"]
    'allreduce'
    """
    told: dict[str, Any] = _capi.call("goccl_stats")
    if "goccl._C" in sys.modules:  # it knows what is staged, and has made the groups
        told["memory"] = dict(load().memory_stats())
    return told


def stragglers(group: Group = None) -> list[Straggler]:
    """Tells for which ranks of a group the others have waited in collectives, and how long.

    All ranks of the group must call it, as a collective: each gets the same list. It tells of the
    time since the group was made. Waits overlap: where rank 0 waits for rank 1, which waits for
    rank 2, both waits count. A process keeps the first 64 names of groups apart, and knows nothing
    of single groups with later ones.

    Args:
        group: as of describe().

    Returns:
        All ranks, that which is waited for longest first.

    Raises:
        TypeError, ValueError, torch.distributed.DistBackendError: as describe().

    >>> goccl.stragglers()[0]
    Straggler(rank=3, global_rank=3, host='beta', pid=4711, seconds=12.5, longest=4.3)
    """
    import torch

    about = describe_for(group, "goccl.stragglers")
    waited = {
        wait["rank"]: wait["seconds"]
        for wait in _capi.call("goccl_stats")["waits"]
        if wait["group"] == about.name
    }
    mine = torch.tensor([waited.get(r, 0.0) for r in about.global_ranks], dtype=torch.float64)
    table = torch.empty(about.size, about.size, dtype=torch.float64)  # by who waits, and for whom
    communicator = load().Communicator
    asks = group if isinstance(group, communicator) else communicator(group)
    asks.all_gather_into(table, mine)
    all_ranks = [
        Straggler(rank, about.global_ranks[rank], about.hosts[rank], about.pids[rank], *seconds)
        for rank, seconds in enumerate(
            zip(table.sum(0).tolist(), table.amax(0).tolist(), strict=True)
        )
    ]
    return sorted(all_ranks, key=lambda s: (-s.seconds, s.rank))
