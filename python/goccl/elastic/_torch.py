"""What torch keeps of a group and its members, where these have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from goccl.groups import describe

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from goccl.groups import Group


def mend_tables(group: Group = None) -> None:
    """Has torch know the present members of a group, whose members have changed.

    Torch's own tables have the ranks of the start. The number of groups is a part of the names of
    new ones, and newcomers have made fewer. From then on `new_group()` and `split_group()` go by
    the present members. Groups that were made before keep the old ranks. `run` calls it for you;
    after torch's own `_reconfigure()` all members call it.

    Args:
        group: a process group with the backend goccl, or a goccl.Communicator; None for the default
            group.

    Raises:
        torch.distributed.DistBackendError: a peer has failed, or is late.
    """
    import goccl

    comm = goccl.Communicator(group)
    world = c10d._world
    for known in world.pg_map:
        if _backend_of(known) is comm._backend:
            ranks = describe(comm).global_ranks
            world.pg_group_ranks[known] = {g: r for r, g in enumerate(ranks)}
    count = torch.tensor([world.group_count])
    comm.all_reduce_(count, "max")
    world.group_count = int(count.item())


def _backend_of(group: dist.ProcessGroup) -> object:
    """Returns the backend of a group for CPU tensors, None where it has none."""
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return None
    return getattr(backend, "wrapped_pg", backend)  # of TORCH_DISTRIBUTED_DEBUG=DETAIL


def start_over(model: DistributedDataParallel) -> None:
    """Gives a model a new reducer, as its construction and unpickling do, without a collective.

    The old one may be in the middle of a backward pass that has failed. And it may have formed its
    buckets anew, which those of newcomers have not.
    """
    ddp: Any = model  # its own names are not typed
    parameters, sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    for hook, state in ddp._comm_hooks:
        dist._register_comm_hook(ddp.reducer, state, hook)
