"""What torch keeps of a group and its members, where these have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from goccl.groups import describe

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from goccl._C import Communicator


def mend(comm: Communicator) -> None:
    """Has torch know the present members of a group. All of them call it.

    Torch's own tables still have the ranks of the start: see elastic training's documentation.
    """
    description = describe(comm)
    group = c10d._resolve_process_group(description.name)  # type: ignore[arg-type]
    world = c10d._world
    world.pg_group_ranks[group] = {g: r for r, g in enumerate(description.global_ranks)}
    if group is c10d.GroupMember.WORLD:
        # It is a part of the names of new groups, and newcomers have made fewer.
        count = torch.tensor([world.group_count])
        comm.all_reduce_(count, "max")
        world.group_count = int(count.item())


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
