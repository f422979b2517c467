"""What torch keeps of a group and its members, where these have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.distributed.algorithms.join import _JoinConfig

from goccl._groups import describe
from goccl.elastic._snapshot import ordinary_tensors

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from goccl._groups import Group


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
    count = torch.tensor([world.group_count], device="cpu")
    comm.all_reduce_(count, "max")
    world.group_count = int(count.item())


def _backend_of(group: dist.ProcessGroup) -> object:
    """Returns the backend of a group for CPU tensors, None where it has none."""
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return None
    return getattr(backend, "wrapped_pg", backend)  # of TORCH_DISTRIBUTED_DEBUG=DETAIL


@ordinary_tensors()
def start_over(model: DistributedDataParallel) -> None:
    """Has a model start over as if it had just been made, without a collective.

    Its old reducer may be in the middle of a backward pass that has failed. And it may have formed
    its buckets anew, which those of newcomers have not. What else the model keeps from iteration to
    iteration must be alike on all ranks, too: a newcomer's has none of it.
    """
    ddp: Any = model  # its own names are not typed
    ddp._remove_autograd_hooks()  # a failure's traceback may still hold the old reducer
    builtin = ddp._get_ddp_logging_data().get("comm_hook", "").partition("BuiltinCommHookType.")[2]
    parameters, sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = False
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    if getattr(ddp, "_require_manual_backward_finalization", False):  # torch 2.15
        ddp.require_manual_backward_finalization = True
    ddp.require_forward_param_sync = ddp.require_backward_grad_sync = True
    ddp._has_rebuilt_buckets = False
    ddp._join_config = _JoinConfig(False, False, False)
    hooks, ddp._comm_hooks = ddp._comm_hooks, []
    for hook, state in hooks:
        if hook.__name__ != "apply_optim_in_backward_hook":
            _forget_iterations(state)
            ddp.register_comm_hook(state, hook)
    ddp._lazy_init_ran = False  # the next forward pass registers that one
    if builtin:
        ddp._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, builtin))


def _forget_iterations(state: Any) -> None:
    """Takes the state of a hook of torch's back to where it began, alike on all ranks."""
    if isinstance(state, PowerSGDState):
        # What it remembers is of the old buckets.
        for memory in state.error_dict, state.p_memory_dict, state.q_memory_dict:
            memory.clear()
        state.rng.seed(0)
        state.iter = state.next_stats_report = 0
    elif isinstance(state, PostLocalSGDState):
        state.iter = 0
