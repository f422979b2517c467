"""An all-gather along a ring of hosts: each block crosses each link between hosts once.

The built-in all-gather sends the block of each rank from its host to each rank of the others. Here
rank i of a host sends what it has to rank i of the next host only, and shares what comes with the
ranks of its own host.

    python allgather_around_hosts.py --hosts 4 --per-host 2 --output allgather_around_hosts.json
    GOCCL_PLANS=allgather_around_hosts.json torchrun --nnodes 4 --nproc-per-node 2 ... train.py
"""

import argparse

from goccl import plan


def allgather_around_hosts(hosts: int, per_host: int, least: int = 0) -> plan.Program:
    """Makes the program.

    Args:
        hosts: How many hosts there are.
        per_host: Ranks of each, in order.
        least: Bytes of the shortest block that it is for.
    """
    n = hosts * per_host
    p = plan.Program(
        "allgather_around_hosts",
        plan.AllGather(),
        ranks=n,
        bytes=(n * least, 0),
        per_host=per_host,
    )
    for me in p.ranks:
        p.copy(me.output[me], me.input[0])
    for step in range(hosts):
        for me in p.ranks:
            host, index = divmod(me.number, per_host)
            block = (host - step) % hosts * per_host + index
            if step < hosts - 1:
                onward = p.ranks[(host + 1) % hosts * per_host + index]
                p.copy(onward.output[block], me.output[block])
            for neighbour in range(host * per_host, (host + 1) * per_host):
                if neighbour != me.number:
                    p.copy(p.ranks[neighbour].output[block], me.output[block])
    return p


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--per-host", type=int, default=2)
    parser.add_argument("--output", help="a file for the program")
    args = parser.parse_args()
    p = allgather_around_hosts(args.hosts, args.per_host)
    print(p.verify(4096 * args.hosts * args.per_host))
    if args.output:
        p.save(args.output)


if __name__ == "__main__":
    main()
