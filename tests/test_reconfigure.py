"""Groups that get their members by handles: init_process_group(enable_reconfigure=True)."""

from datetime import timedelta

import harness
import pytest
import torch
import torch.distributed as dist

SIZES = (3,)
SECONDS = timedelta(seconds=20)

pytestmark = [
    pytest.mark.skipif(
        not hasattr(dist, "_reconfigure"), reason="this torch reconfigures no groups"
    ),
    pytest.mark.skipif(harness.BACKEND != "goccl", reason="is about goccl"),
]


def opened(rank, **options):
    """Opens the default group, and returns its store."""
    store = rank.make_store()
    dist.init_process_group(
        "goccl",
        store=store,
        rank=rank.rank,
        world_size=rank.size,
        timeout=SECONDS,
        enable_reconfigure=True,
        **options,
    )
    return store


def handles_of(rank, store, name="handles"):
    store.set(f"{name}{rank.rank}", dist._get_reconfigure_handle())
    return [store.get(f"{name}{r}").decode() for r in range(rank.size)]


def works(size):
    """The group has as many ranks, and tensors and objects go to and fro."""
    me = dist.get_rank()
    assert dist.get_world_size() == size
    tensor = torch.full((5,), me + 1.0)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size * (size + 1) / 2] * 5
    objects: list = [None] * size
    dist.all_gather_object(objects, {"rank": me})
    assert objects == [{"rank": r} for r in range(size)]


def meet_and_part(rank):
    import goccl

    store = opened(rank)
    world = dist.group.WORLD
    backend = world._get_backend(torch.device("cpu"))
    assert dist._supports_reconfigure()
    assert backend.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
    with pytest.raises(goccl.UnsupportedError, match=r"_reconfigure\(\) first"):
        dist.all_reduce(torch.ones(1))
    handles = handles_of(rank, store)
    dist._reconfigure(1, handles).wait()
    assert dist.get_rank() == rank.rank
    works(3)
    assert world._get_sequence_number_for_group() > 0
    before = world._get_sequence_number_for_group()

    # A set is in the order of the handles.
    work = dist._reconfigure(2, set(handles), timeout=SECONDS)
    assert work.is_completed()
    assert work.wait()
    assert dist.get_rank() == sorted(handles).index(handles[rank.rank])
    assert world._get_sequence_number_for_group() == 0 < before
    works(3)
    assert handles_of(rank, store, "again") == handles

    # What waits ends.
    pending = dist.irecv(torch.empty(1), (dist.get_rank() + 1) % 3)
    dist._reconfigure(3, handles).wait()
    # A peer may have been quicker.
    with pytest.raises(goccl.Error, match=r"reconfigured|has left"):
        pending.wait()
    if rank.rank != 1:
        dist._reconfigure(4, [handles[2], handles[0]]).wait()
        works(2)
    else:
        dist._reconfigure(5, {handles[1]}).wait()
        works(1)
    store.set(f"through{rank.rank}", "")
    store.wait([f"through{r}" for r in range(3)])
    backend.abort()
    assert backend.get_error() == torch._C._distributed_c10d.ErrorType.COMM_ERROR
    with pytest.raises(goccl.AbortedError):
        dist.barrier()
    dist._reconfigure(6, handles).wait()
    works(3)
    dist.destroy_process_group()


@pytest.mark.parametrize("transport", harness.TRANSPORTS)
def test_meet_and_part(server, transport):
    with harness.World(server, 3, env={"GOCCL_TRANSPORT": transport}) as world:
        world.run(meet_and_part)


def mended(rank):
    """Rank 0 is a newcomer, which has made no groups."""
    import goccl.elastic

    store = opened(rank)
    handles = handles_of(rank, store)
    if rank.rank:
        dist._reconfigure(1, handles[1:]).wait()
        goccl.elastic.mend_tables()
        dist.new_group([0, 1])
        dist.new_group([1])
    dist._reconfigure(2, handles[::-1]).wait()
    goccl.elastic.mend_tables()
    me = dist.get_rank()
    assert dist.get_process_group_ranks(None) == [0, 1, 2]
    group = dist.new_group([0, 2])
    if me != 1:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 2
    if rank.rank:
        dist._reconfigure(3, handles[1:]).wait()
        goccl.elastic.mend_tables()
        assert dist.get_process_group_ranks(None) == [0, 1]
        child = dist.split_group(None, [[0], [1]])
        assert dist.get_world_size(child) == 1
    dist.destroy_process_group()


def test_mended(server):
    with harness.World(server, 3) as world:
        world.run(mended)


def refused(rank):
    import goccl

    store = opened(rank)
    handles = handles_of(rank, store)
    me = handles[rank.rank]
    for given, words in (
        ([], "no handles are given"),
        ([me, "nonsense"], 'handle 2 of 2, "nonsense"'),
        ([me, me], "are the same"),
        ([h for h in handles if h != me], "own handle is not among the 2"),
    ):
        # Each with a uuid that no other rank uses.
        uuid = 100 * rank.rank + len(words)
        with pytest.raises(RuntimeError, match=words):
            dist._reconfigure(uuid, given)
    assert (dist.get_rank(), dist.get_world_size()) == (rank.rank, 3)
    dist._reconfigure(1000, handles).wait()
    with pytest.raises(RuntimeError, match="already used"):
        dist._reconfigure(1000, handles)
    works(3)
    with pytest.raises(goccl.MismatchError, match="different lists of handles"):
        dist._reconfigure(1001, handles if rank.rank else handles[::-1])
    works(3)
    if rank.rank:
        with pytest.raises(goccl.OperationTimeoutError, match=r"rank 0 \(pid") as error:
            dist._reconfigure(1002, handles, timeout=timedelta(seconds=2))
        assert error.value.absent == [0]
        store.set(f"late{rank.rank}", "")
    store.wait(["late1", "late2"])
    dist.destroy_process_group()


def test_refused(server):
    with harness.World(server, 3) as world:
        world.run(refused)


def survive(rank):
    import goccl

    store = opened(rank)
    handles = handles_of(rank, store)
    dist._reconfigure(1, handles).wait()
    model = torch.nn.Linear(4, 1)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    ddp(torch.ones(2, 4)).sum().backward()
    rank.tell("ready")
    if rank.rank == 1:
        rank.hear()
    with pytest.raises(goccl.PeerFailedError):
        dist.all_reduce(torch.ones(1))
    with pytest.raises(goccl.PeerFailedError, match=r"rank 1 \(pid"):
        dist._reconfigure(2, handles)
    dist._reconfigure(3, [handles[0], handles[2]]).wait()
    works(2)
    ddp(torch.ones(2, 4)).sum().backward()  # the same object goes on
    grads = [torch.empty_like(model.weight) for _ in range(2)]
    dist.all_gather(grads, model.weight.grad)
    assert torch.equal(*grads)
    dist.destroy_process_group()


def test_killed(server):
    import signal

    with harness.World(server, 3) as world:
        world.start(survive)
        for rank in range(3):
            assert world.told(rank) == "ready"
        world.signal(1, signal.SIGKILL)
        world.finish(ranks=[0, 2])
        world.healthy = False


def by_communicator(rank):
    import goccl

    store = opened(rank)
    comm = goccl.Communicator()
    store.set(f"handle{rank.rank}", comm.handle)
    handles = [store.get(f"handle{r}").decode() for r in range(3)]
    comm.reconfigure("any text", handles)
    assert (comm.rank, comm.size) == (rank.rank, 3)
    comm.reconfigure("a set", set(handles), timeout=SECONDS)
    assert comm.rank == sorted(handles).index(handles[rank.rank])
    tensor = torch.ones(2)
    comm.all_reduce_(tensor)
    assert tensor.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="already used"):
        comm.reconfigure("a set", handles)
    dist.destroy_process_group()


def test_communicator(server):
    with harness.World(server, 3) as world:
        world.run(by_communicator)


def joined_by_init(rank):
    rank.init()
    works(3)
    handles = handles_of(rank, rank.make_store("handles"))
    dist._reconfigure(1, handles[::-1]).wait()
    assert dist.get_rank() == 2 - rank.rank
    works(3)
    dist.destroy_process_group()


def test_joined_by_init(server):
    with harness.World(server, 3) as world:
        world.run(joined_by_init)


def shrink(rank, flags):
    import goccl

    rank.init()
    works(3)
    if rank.rank == 1:
        with pytest.raises(RuntimeError, match="exclusion list"):
            dist.shrink_group([1])
        rank.tell("left")
        rank.hear()
        return
    rank.hear()  # else this revokes what the other is still in
    group = dist.shrink_group([1], shrink_flags=flags)
    assert group is dist.group.WORLD
    assert dist.get_rank() == rank.rank // 2
    works(2)
    assert isinstance(
        group._get_backend(torch.device("cpu")), goccl._native.load().ProcessGroupGoccl
    )
    dist.destroy_process_group()


@pytest.mark.parametrize("flags", [0, 1])
@pytest.mark.skipif(not hasattr(dist, "shrink_group"), reason="this torch shrinks no groups")
def test_shrink(server, flags):
    with harness.World(server, 3) as world:
        world.start(shrink, flags)
        assert world.told(1) == "left"
        world.say("go", ranks=[0, 2])
        world.finish(ranks=[0, 2])
        world.say("end", ranks=[1])
        world.finish(ranks=[1])
        world.healthy = False
