"""A state of which each rank has another part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from goccl.elastic._snapshot import Snapshot
from goccl.elastic._state import MembershipChanged, TorchState
from goccl.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from goccl._groups import Group

_NONE = -1  # the version of a copy that is older than any


class ShardedState(TorchState):
    """A TorchState with parts that one rank alone has: shards of an optimizer, a replay buffer.

    Each rank has a list of parts. A commit copies them to other ranks, those of other hosts first,
    so that they outlive their rank. All lists together are the parts of the last commit, each once,
    whoever dies or joins: those of a rank that has died are appended to the list of one that kept a
    copy, or are a newcomer's, if one takes its place. Other newcomers have an empty list. So the
    function begins with the parts that the list has then, or cuts all of them anew.

    After each change of the members everything is as at the last commit, also what all ranks have
    alike, of which a second copy is kept. It uses the checkpoints of its group: no other state of
    that may be sharded.

    Args:
        model: A module that all ranks have alike, or None.
        optimizer: An optimizer that all ranks have alike, or None.
        group: A process group of the backend goccl, or a goccl.Communicator; None for the default
            group.
        parts: What this rank alone has: anything that pickle takes.
        replicas: How many other ranks keep a copy of the parts; the same on all ranks. Parts are
            lost only if their rank and all of these die before the next commit.
        **objects: What else all ranks have alike: see ObjectState.

    Attributes:
        parts: The list of this rank's parts. It may be changed, or replaced, between commits.

    Raises:
        RuntimeError: the group has checkpoints already.

    Example:
        >>> state = goccl.elastic.ShardedState(model, optimizer, parts=[[]], step=0)
        >>> state.parts[0].append(sample)
        >>> state.commit()
    """

    parts: list[Any]

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        group: Group = None,
        *,
        parts: Iterable[Any],
        replicas: int = 1,
        **objects: Any,
    ) -> None:
        super().__init__(model, optimizer, group, **objects)
        if self._comm.checkpoint_version:
            raise RuntimeError(
                "ShardedState: the group has checkpoints already, "
                f"{self._comm.checkpoint_version} of them: it can have one such state only"
            )
        self.parts = list(parts)
        self._replicas = replicas
        # What restore() goes back to, as `_saved`. The core has them of the last commit, too.
        self._shards = [Snapshot.of(self.parts, 0).to_bytes()]
        self._staged: Snapshot | None = None  # of a save that has failed: it may count
        self._spare: Snapshot | None = None  # memory for the next copy

    def save(self) -> None:
        """Keeps a copy in memory, of the parts also at other ranks. commit() calls it.

        All ranks call it at the same place. After an error sync() comes first.

        Raises:
            MembershipChanged: members have died, and the group has gone on.
            ValueError: a rank would hold more than 1 GiB of parts, in two versions and with all
                copies that it keeps for others, or replicas are negative.
            goccl.MismatchError: `replicas` is another number on other ranks.
            goccl.Error: a member has failed.
        """
        if self._staged is not None:
            raise RuntimeError("ShardedState: the last commit has failed: sync() comes first")
        self._staged = Snapshot.of(self._values(), self._saved.version + 1, self._spare)
        self._spare = None
        shard = Snapshot.of(self.parts, 0).to_bytes()
        try:
            self._comm.checkpoint(_stamp(self._staged.version), shard, self._replicas)
        except MismatchError:
            if self._comm.epoch == self._epoch:
                raise
            raise MembershipChanged("members have died") from None
        self._spare, self._saved, self._staged = self._saved, self._staged, None
        self._shards = [shard]

    def restore(self) -> None:
        """Goes back to the last commit. Gradients are dropped."""
        super().restore()
        self.parts = [part for s in self._shards for part in Snapshot.from_bytes(s).objects()]

    def sync(self) -> None:
        """Goes back to the last commit, on all ranks, and hands out the parts of those that died.

        Then it commits, so that as many ranks as before keep copies. Where nothing has been
        committed each rank keeps its parts.

        Raises:
            RuntimeError: parts are lost: see on_lost().
            goccl.Error: a member has failed.
        """
        version, stamp, shard, orphans = self._comm.load_checkpoint()
        if version:
            if self._staged is not None and stamp == _stamp(self._staged.version):
                self._saved = self._staged
            known = stamp == _stamp(self._saved.version)
            self._shards = [s for s in (shard, *(model for _, model in orphans)) if s]
            if known:
                self.restore()
            else:  # a newcomer
                self._saved.version = _NONE
        self._staged = self._spare = None
        super().sync()
        if self._saved.version == _NONE:
            raise RuntimeError("ShardedState: the last checkpoint of the group is of another state")
        lost = [rank for rank, model in orphans if model is None]
        if lost:
            self.on_lost(lost)
        self.save()

    def on_lost(self, ranks: list[int]) -> None:
        """Is called on all ranks by sync() where parts are lost: raises, if it is not replaced.

        Args:
            ranks: Those that had them at the last commit.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            f"ShardedState: the parts of rank {', '.join(map(str, ranks))} at the last commit are "
            f"lost: it and all that kept a copy have ended (replicas={self._replicas})"
        )


def _stamp(version: int) -> bytes:
    """Tells of which copies of what all have alike a checkpoint is."""
    return version.to_bytes(8, "little", signed=True)
