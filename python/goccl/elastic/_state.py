"""States: what all ranks have alike, and go back to after a failure."""

from __future__ import annotations

import abc
import pickle
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import torch
from torch.nn.parallel import DistributedDataParallel

from goccl._native import load
from goccl.elastic import _torch
from goccl.elastic._sampler import ElasticSampler
from goccl.elastic._snapshot import Snapshot, allocate, as_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from goccl._C import Communicator
    from goccl._groups import Group


_STRIPED = 1 << 20  # bytes of a tensor from which on several ranks send it


class _Stateful(Protocol):
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class MembershipChanged(Exception):
    """Processes wait to join, or members have died in a collective that the others completed:
    State.check_host_updates() raises it on all ranks.

    goccl.elastic.run catches it, and goes on from the present state, not from the last commit. It
    is no error, and no subclass of goccl.Error.
    """


class State(abc.ABC):
    """What all members of a group have alike: a base for states of one's own.

    A subclass says how to save, restore and synchronize. goccl.elastic.run uses it.

    Args:
        group: A process group of the backend goccl, or a goccl.Communicator; None for the default
            group.
    """

    def __init__(self, group: Group = None) -> None:
        self._comm: Communicator = load().Communicator(group)
        self._size, self._epoch = self._comm.size, self._comm.epoch  # since the last reset
        self._resets = 0  # of the group, as far as this rank knows
        self._callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Adds functions that are called after each change of the members, before the state is
        synchronized.

        Rank and size are the new ones by then: it is the place to adapt a learning rate, or to make
        sub-groups anew. They are called on all ranks, in this order, newcomers among them. What
        they change in the state of a newcomer is replaced.

        Args:
            callbacks: Functions without arguments.
        """
        self._callbacks += callbacks

    def on_reset(self) -> None:
        """Is called after a change of the members, before sync(): calls the callbacks."""
        for callback in self._callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state, and lets in processes that wait to join.

        All ranks call it at the same place. Once it has returned on one rank, or raised
        MembershipChanged there, no rank that lives goes back to an earlier commit. It copies the
        state; so commit as often as the copy is cheap beside what would be lost.

        Raises:
            MembershipChanged: as check_host_updates().
            goccl.Error: a member has failed. The state is saved, and goccl.elastic.run goes on.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Finds out whether processes wait to join, or have died and the group has gone on.

        All ranks call it, and get the same answer.

        Raises:
            MembershipChanged: they do.
            goccl.Error: a member has failed.
        """
        waiting = torch.tensor([self._comm.num_waiting], device="cpu")
        self._comm.all_reduce_(waiting, "sum")
        if self._comm.epoch != self._epoch:  # with goccl.Options(recovery="survivors")
            raise MembershipChanged("members have died")
        if waiting.item() > 0:
            raise MembershipChanged(f"processes wait to join: {waiting.item()}")

    @abc.abstractmethod
    def save(self) -> None:
        """Keeps a copy of the state, for restore()."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Goes back to the copy that was kept last."""

    @abc.abstractmethod
    def sync(self) -> None:
        """Makes the state the same on all ranks. All call it, newcomers too."""


class ObjectState(State):
    """A state of objects, which are its attributes.

    Objects that have state_dict() and load_state_dict() keep their identity: optimizers, schedulers
    of learning rates, an ElasticSampler. Others are replaced by copies: numbers, lists, tensors;
    what pickle takes. They are to be the same on all ranks.

    A copy of them is kept in host memory, from the first on: making a state saves it.

    Args:
        group: A process group of the backend goccl, or a goccl.Communicator; None for the default
            group.
        **objects: The objects, by the names of the attributes.

    Example:
        >>> state = goccl.elastic.ObjectState(weights=torch.zeros(8), step=0)
        >>> state.step += 1
        >>> state.commit()
    """

    def __init__(self, group: Group = None, **objects: Any) -> None:
        taken = sorted(name for name in objects if hasattr(type(self), name) or name[:1] == "_")
        if taken:
            raise ValueError(
                f"{type(self).__name__}: an object cannot be named {taken[0]!r}: it is a name of "
                "the state itself, or begins with _"
            )
        super().__init__(group)
        self._names = tuple(objects)
        self.__dict__.update(objects)
        self._saved = Snapshot.of(self._values(), 0)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def save(self) -> None:
        """Keeps a copy of the objects in memory. commit() calls it."""
        self._saved = Snapshot.of(self._values(), self._saved.version + 1, self._saved)

    def restore(self) -> None:
        """Goes back to the copy that was kept last."""
        for name, value in self._saved.objects().items():
            present = getattr(self, name, None)
            if _is_stateful(present):
                present.load_state_dict(value)
            else:
                setattr(self, name, value)

    def sync(self) -> None:
        """Makes the objects the same on all ranks: those of the rank that has saved most often.

        Of ranks with equally many saves that with the lowest number is taken, so that the first
        synchronization gives all ranks what rank 0 has. Nothing is copied where nothing differs.
        goccl.elastic.run calls it at the start and after each change of the members.

        Raises:
            goccl.Error: a member has failed. The last copy is as it was, or that of all.
        """
        comm = self._comm
        # No commit: after MembershipChanged the objects may be newer than the copy.
        mine = Snapshot.of(self._values(), self._saved.version, self._saved)
        self._saved = mine
        row = torch.tensor([mine.version, self._resets, *mine.digests()], device="cpu")
        rows = row.new_empty(comm.size, 4)
        comm.all_gather_into(rows, row)
        self._resets = int(rows[:, 1].max())
        version = int(rows[:, 0].max())
        source = int((rows[:, 0] == version).nonzero()[0])
        holders = (rows == rows[source])[:, [0, 2, 3]].all(1).nonzero().flatten().tolist()
        if (rows[:, [0, 2, 3]] == rows[0, [0, 2, 3]]).all():
            return
        same_tensors = bool((rows[:, 3] == rows[0, 3]).all())
        head = pickle.dumps((mine.frame, mine.specs)) if comm.rank == source else b""
        frame, specs = pickle.loads(_broadcast_bytes(comm, head, source))
        # Not into the copy's memory, which is needed if the source ends before the last tensor.
        keeps = same_tensors or comm.rank in holders
        tensors = mine.tensors if keeps else allocate(specs)
        if not same_tensors:
            for tensor in tensors:
                _spread(comm, tensor, holders)
        self._saved = Snapshot(version, frame, tensors)
        if comm.rank != source:
            self.restore()

    def on_reset(self) -> None:
        """Is called after a change of the members: deals out samples anew, and calls the
        callbacks."""
        for name in self._names:
            value = getattr(self, name)
            if isinstance(value, ElasticSampler):  # its restore() came before the change
                value.reset()
        super().on_reset()

    def _values(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self._names}
        return {n: v.state_dict() if _is_stateful(v) else v for n, v in values.items()}


class TorchState(ObjectState):
    """The state of a training: model, optimizer, and what else is the same on all ranks.

    After a change of the members each DistributedDataParallel in it starts over as if it had just
    been made, with the same parameters: what it keeps from iteration to iteration a newcomer's does
    not have. Its hook stays, PowerSGD and post-local SGD in their first iteration. What a hook of
    your own keeps is to be brought back in a callback.

    Gradients are dropped then, too: they may be half of a step that has failed.

    Args:
        model: A module, or None.
        optimizer: An optimizer, or None.
        group: A process group of the backend goccl, or a goccl.Communicator; None for the default
            group.
        **objects: What else belongs to the state: see ObjectState. Modules, too.

    Example:
        >>> model = DistributedDataParallel(make_model())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> state = goccl.elastic.TorchState(model, optimizer, epoch=0, sampler=sampler)
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        group: Group = None,
        **objects: Any,
    ) -> None:
        given = {"model": model, "optimizer": optimizer}
        objects = {name: value for name, value in given.items() if value is not None} | objects
        super().__init__(group, **objects)

    def restore(self) -> None:
        """Goes back to the copy that was kept last. Gradients are dropped."""
        super().restore()
        self._drop_gradients()

    def on_reset(self) -> None:
        """Has each DistributedDataParallel start over, drops gradients, and calls the callbacks."""
        for module in self._modules():
            for part in module.modules():
                if isinstance(part, DistributedDataParallel):
                    _torch.start_over(part)
        self._drop_gradients()  # newcomers have none: an optimizer would do different steps
        super().on_reset()

    def _drop_gradients(self) -> None:
        for module in self._modules():
            module.zero_grad(set_to_none=True)

    def _modules(self) -> list[torch.nn.Module]:
        values = [getattr(self, name) for name in self._names]
        return [value for value in values if isinstance(value, torch.nn.Module)]


def _is_stateful(value: Any) -> TypeGuard[_Stateful]:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _spread(comm: Communicator, tensor: torch.Tensor, holders: list[int]) -> None:
    """Gives all ranks a tensor that some have: a large one from all of these at once, if they are
    at least as many as the others."""
    takers = [rank for rank in range(comm.size) if rank not in holders]
    if tensor.nbytes < _STRIPED or len(takers) > len(holders):
        comm.broadcast_(tensor, holders[0])
        return
    stripes = as_bytes(tensor).tensor_split(len(holders))
    sent = [stripes[0][:0]] * comm.size
    received = list(sent)
    for holder, stripe in zip(holders, stripes, strict=True):
        if comm.rank in takers:
            received[holder] = stripe
        elif comm.rank == holder:
            sent = [stripe if rank in takers else stripe[:0] for rank in range(comm.size)]
    # Torch's stub leaves it out.
    comm._backend.alltoall(received, sent).wait()  # type: ignore[attr-defined]


def _broadcast_bytes(comm: Communicator, data: bytes, source: int) -> bytes:
    """Returns the bytes that the rank `source` has."""
    size = torch.tensor([len(data)], device="cpu")
    comm.broadcast_(size, source)
    if comm.rank == source:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    else:
        content = torch.empty(int(size.item()), dtype=torch.uint8, device="cpu")
    comm.broadcast_(as_bytes(content), source)
    return content.numpy().tobytes()
