"""An all-to-all by tiers: ranks of a host gather what goes to another host.

Of small blocks a network carries few bytes, but each message costs. With `per_host` ranks a host
the built-in all-to-all sends per_host * per_host messages from each host to each. Here rank i of a
host first takes from the ranks of its host all that goes to rank i of another host, and sends it as
one message: per_host messages from each host to each.

    python alltoall_by_tiers.py --hosts 2 --per-host 4 --output alltoall_by_tiers.json
    GOCCL_PLANS=alltoall_by_tiers.json torchrun --nnodes 2 --nproc-per-node 4 ... train.py

It serves dist.all_to_all_single() without split sizes, of at most 4 KiB a block.
"""

import argparse

from goccl import plan


def alltoall_by_tiers(hosts: int, per_host: int, most: int = 4096) -> plan.Program:
    """Makes the program.

    Args:
        hosts: How many hosts there are.
        per_host: Ranks of each, in order.
        most: Bytes of the longest block that it is for.
    """
    n = hosts * per_host
    p = plan.Program(
        "alltoall_by_tiers",
        plan.AllToAll(),
        ranks=n,
        scratch=n,
        bytes=(0, n * most),
        per_host=per_host,
    )
    for me in p.ranks:
        host, index = divmod(me.number, per_host)
        for neighbour in range(host * per_host, (host + 1) * per_host):
            p.copy(p.ranks[neighbour].output[me], me.input[neighbour])
        for other in range(n):  # by way of the neighbour that has the same index
            if other // per_host != host:
                gathers = p.ranks[host * per_host + other % per_host]
                p.copy(gathers.scratch[other // per_host * per_host + index], me.input[other])
    for me in p.ranks:
        host, index = divmod(me.number, per_host)
        for far in range(hosts):
            if far != host:
                peer = p.ranks[far * per_host + index]
                mine = slice(host * per_host, (host + 1) * per_host)
                gathered = slice(far * per_host, (far + 1) * per_host)
                p.copy(peer.output[mine], me.scratch[gathered])
    return p


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--per-host", type=int, default=4)
    parser.add_argument("--output", help="a file for the program")
    args = parser.parse_args()
    p = alltoall_by_tiers(args.hosts, args.per_host)
    print(p.verify(64 * args.hosts * args.per_host))
    if args.output:
        p.save(args.output)


if __name__ == "__main__":
    main()
