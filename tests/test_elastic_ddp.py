"""What DDP keeps from iteration to iteration, through failures, a death and a newcomer: each way to
use it must come to what one process comes to."""

from contextlib import nullcontext
from typing import Any

import goccl
import goccl.elastic
import harness
import torch
import torch.distributed as dist
from test_elastic import batch_of, die, pytestmark, survivors_of  # noqa: F401
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel

PRELOAD = ("torch._dynamo", "torch.distributed.optim")


class Net(nn.Module):
    """Of several heads each step uses one. It may have a buffer, which counts."""

    def __init__(self, heads, buffer):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 20), nn.Linear(20, 20)
        self.heads = nn.ModuleList(nn.Linear(20, 1) for _ in range(heads))
        self.passes: Any
        self.register_buffer("passes", torch.zeros(()) if buffer else None)

    def forward(self, x, step):
        h = self.second(self.first(x).tanh()).tanh()
        if self.passes is not None:
            self.passes += 1
            h = h * (1 + self.passes / 100)
        return self.heads[step % len(self.heads)](h)


class Variant:
    """A way to use DDP, and, without it, what that comes to."""

    heads, buffer = 1, False
    options: tuple[str, ...] = ()  # that are True
    tolerance = 1e-4

    def __init__(self, alone):
        self.net = Net(self.heads, self.buffer)
        self.model: Any = self.net
        self.alone = alone
        if not alone:
            self.model = self.wrap()
        self.optimizers = self.optimize()

    def wrap(self):
        return DistributedDataParallel(
            self.net, bucket_cap_mb=0.001, **dict.fromkeys(self.options, True)
        )

    def optimize(self):
        return [torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.5)]

    def step(self, *where):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.backward(*where)
        for optimizer in self.optimizers:
            optimizer.step()

    def backward(self, *where):
        self.loss(*where).backward()

    def kept(self):
        """What a hook keeps that is to be alike on all ranks."""

    def loss(self, step, rank, size):
        x, y = (t[rank::size] for t in batch_of(step))
        return (self.model(x, step) - y).square().mean()


class Evaluated(Variant):
    """After a forward pass without gradients the next one does not share buffers."""

    buffer = True

    def backward(self, *where):
        super().backward(*where)
        with torch.no_grad():
            self.loss(*where)


class Views(Variant):
    options = ("gradient_as_bucket_view",)


class Unused(Variant):
    heads = 2
    options = ("find_unused_parameters",)


class ZeroGradients(Unused):
    """Gradients stay, zero, of what a step does not use, but a newcomer has none."""

    tolerance = float("inf")  # so it differs after a reset

    def step(self, *where):
        self.optimizers[0].zero_grad(set_to_none=False)
        self.backward(*where)
        self.optimizers[0].step()


class Static(Variant):
    options = ("static_graph",)


class StaticViews(Variant):
    options = ("static_graph", "gradient_as_bucket_view")


class StaticLater(Variant):
    def wrap(self):
        model = super().wrap()
        model._set_static_graph()
        return model


class NoSync(Variant):
    def backward(self, *where):
        with nullcontext() if self.alone else self.model.no_sync():
            super().backward(*where)
        super().backward(*where)


class SyncByHand(Variant):
    """The second step of each pair sees what the first one leaves."""

    def backward(self, *where):
        assert self.alone or self.model.require_backward_grad_sync
        self.model.require_backward_grad_sync = False
        super().backward(*where)
        self.model.require_backward_grad_sync = True
        super().backward(*where)


class Joined(Variant):
    """The context for ranks that have less to do than others outlives its end, in torch."""

    def backward(self, *where):
        self.loss(*where)
        with nullcontext() if self.alone else self.model.join():
            super().backward(*where)


class Delayed(Variant):
    def wrap(self):
        return DistributedDataParallel(
            self.net,
            delay_all_reduce_named_params=[
                (f"heads.{name}", p) for name, p in self.net.heads.named_parameters()
            ],
            param_to_hook_all_reduce=self.net.first.weight,
        )

    def backward(self, *where):
        super().backward(*where)
        if not self.alone:
            dist.barrier()  # torch does not wait for it


class ByHand(Variant):
    def wrap(self):
        model = super().wrap()
        model.require_manual_backward_finalization = True
        return model

    def backward(self, *where):
        super().backward(*where)
        if not self.alone:
            self.model.finalize_backward()


class Hook(Variant):
    def wrap(self):
        model = super().wrap()
        model.register_comm_hook(dist.group.WORLD, default_hooks.allreduce_hook)
        return model


class BuiltinHook(Variant):
    tolerance = 1e-2

    def wrap(self):
        model = super().wrap()
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        return model


class PowerSGD(Variant):
    tolerance = 1e-2

    def wrap(self):
        model = DistributedDataParallel(self.net)  # its hook takes one bucket only, on a CPU
        self.hook = powerSGD_hook.PowerSGDState(
            None, 20, 2, min_compression_rate=0.1, orthogonalization_epsilon=1e-8, random_seed=5
        )
        model.register_comm_hook(self.hook, powerSGD_hook.powerSGD_hook)
        return model

    def kept(self):
        return self.hook.iter, self.hook.rng.randint(1 << 30)


class PostLocalSGD(Variant):
    def wrap(self):
        model = super().wrap()
        self.hook = post_localSGD_hook.PostLocalSGDState(None, dist.group.WORLD, 3)
        model.register_comm_hook(self.hook, post_localSGD_hook.post_localSGD_hook)
        return model

    def kept(self):
        return self.hook.iter


class Stream:
    """What DDP takes of an accelerator, which hosts of tests do not have."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def record(self):
        pass

    def wait(self, stream):
        pass

    wait_stream = wait


class InBackward(Variant):
    """Each parameter has an optimizer that steps as soon as its gradient is there."""

    def wrap(self):
        how = {"lr": 0.05, "momentum": 0.5}
        _apply_optimizer_in_backward(torch.optim.SGD, self.net.parameters(), how)
        return super().wrap()

    def optimize(self):
        if self.alone:
            return super().optimize()
        return [o for p in self.model.parameters() for o in p._in_backward_optimizers]

    def step(self, *where):
        if self.alone:
            super().step(*where)
        else:
            self.backward(*where)


VARIANTS: list[Any] = [ZeroGradients, *Variant.__subclasses__()]
DEATH = len(VARIANTS) + 1
JOIN = DEATH + 4  # PowerSGD begins in the third step
STEPS = JOIN + 4


def hook_of(variant):
    return variant.model._get_ddp_logging_data().get("comm_hook")


def run_variants(rank, members):
    for place, name in (torch, "Stream"), (torch, "Event"), (torch.accelerator, "current_stream"):
        setattr(place, name, Stream)
    newcomer = rank.rank >= members
    number, size = (0, 1) if newcomer else (rank.rank, members)
    dist.init_process_group("goccl", store=rank.make_store(), rank=number, world_size=size)
    comm = goccl.Communicator()
    variants = [kind(alone=False) for kind in VARIANTS]
    hooks = [hook_of(v) for v in variants]
    objects = {type(v).__name__: v.model for v in variants}
    for v in variants:
        objects |= {f"{type(v).__name__}_{i}": o for i, o in enumerate(v.optimizers)}
    state = goccl.elastic.TorchState(step=0, **objects)
    failed = set()
    held = [v.model.reducer for v in variants]  # as the traceback of a failure may

    def fails(variant, step):
        """In the middle of a backward pass of each variant the group fails, in steps of their own.
        Then a member dies."""
        if rank.rank == 0 and state.step == step and step not in failed:
            failed.add(step)
            comm.revoke("it is tried")
            dist.barrier()
        if rank.rank == 1 and state.step == DEATH and isinstance(variant, Static):
            die()

    for step, v in enumerate(variants, 1):
        v.net.second.weight.register_hook(lambda _, v=v, step=step: fails(v, step))
    if newcomer:
        comm.join([rank.hear()])

    @goccl.elastic.run
    def train(state):
        while state.step < STEPS:
            for v in variants:
                v.step(state.step, dist.get_rank(), dist.get_world_size())
            state.step += 1
            if state.step == JOIN and comm.size < members and rank.rank == 0:
                rank.tell(comm.handle)
                harness.until(lambda: comm.num_waiting == 1, 30)
            state.commit()

    train(state)
    assert dist.get_world_size() == members
    assert all(v.model.reducer is not old for v, old in zip(variants, held, strict=True))
    for v, hook in zip(variants, hooks, strict=True):
        harness.expect(hook in (hook_of(v), None), f"{type(v).__name__}: {hook_of(v)}, not {hook}")
        if rank.rank == 0:
            alone = type(v)(alone=True)
            for step in range(STEPS):
                alone.step(step, 0, 1)
            for p, q in zip(v.net.parameters(), alone.net.parameters(), strict=True):
                far = (p - q).abs().max().item()
                harness.expect(far <= v.tolerance, f"{type(v).__name__}: weights are {far} off")
    return {
        type(v).__name__: (v.kept(), [t.tolist() for t in v.model.parameters()]) for v in variants
    }


def test_variants(make_world):
    world = make_world(3, store="tcp")
    world.start(run_variants, 2)
    world.say(world.told(0), ranks=[2])
    member, newcomer = survivors_of(world, (1,))
    assert [name for name in member if member[name] != newcomer[name]] == []
