"""goccl.torchft: groups that torchft makes anew. torchft is no dependency of the tests."""

import importlib.util
from datetime import timedelta

import harness
import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchft") is None, reason="torchft is not installed"
)

SECONDS = timedelta(seconds=20)


def quorums(rank, port):
    import torch
    import torch.distributed as dist
    from goccl.torchft import ProcessGroupGoccl
    from torchft import process_group

    store = dist.TCPStore("localhost", port, is_master=False, timeout=SECONDS)
    group = ProcessGroupGoccl(timeout=SECONDS)
    assert group.getBackendName() == "torchft-goccl"
    for quorum, members in enumerate([[0, 1, 2], [2, 0], [1, 2, 0]]):
        if rank.rank in members:
            me, size = members.index(rank.rank), len(members)
            where = f"localhost:{port}/{quorum}"
            if hasattr(process_group, "reconfigure_with_store"):
                process_group.reconfigure_with_store(group, where, me, size, SECONDS)
            else:
                group.configure(where, f"replica {rank.rank}", me, size)
            assert group.size() == size
            tensor = torch.tensor([rank.rank + 1.0])
            group.allreduce([tensor], dist.ReduceOp.SUM).wait()
            assert tensor.item() == sum(m + 1 for m in members)
        store.set(f"{quorum}/{rank.rank}", "")
        store.wait([f"{quorum}/{r}" for r in range(3)])
    group.shutdown()


def test_quorums(server):
    import torch.distributed as dist

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with harness.World(server, 3) as world:
        world.run(quorums, store.port)
