"""A sampler whose ranks come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Sampler

from goccl._native import load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized

    from goccl._C import Communicator
    from goccl._groups import Group


class ElasticSampler(Sampler[int]):
    """Deals the samples of an epoch out to the ranks, and what is left of it after a change.

    All ranks go through one order of the samples side by side: the first `size` samples are the
    first of each rank, and so on. So what is done is always the beginning of that order, and one
    number says how much it is, which is a part of the state. Each sample is seen once in an epoch,
    whoever dies or joins, but for steps that were not committed, which are done again. As with
    torch's DistributedSampler ranks get equally many: at the end of what is left some samples are
    dealt twice, or, with `drop_last`, up to size - 1 are left out.

    Args:
        dataset: What is sampled; only its length counts.
        shuffle: Whether the order differs from epoch to epoch.
        seed: Of the order, the same on all ranks.
        drop_last: Whether a rest that is smaller than the number of ranks is left out.
        group: A process group of the backend goccl, or a goccl.Communicator; None for the default
            group.

    Example:
        >>> sampler = goccl.elastic.ElasticSampler(dataset)
        >>> state = goccl.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
        >>> loader = DataLoader(dataset, batch_size=32, sampler=sampler)
        >>> @goccl.elastic.run
        ... def train(state):
        ...     while state.epoch < 10:
        ...         for batch, (x, y) in enumerate(loader):
        ...             train_one(state.model, x, y)
        ...             sampler.record_batch(batch, 32)
        ...             state.commit()
        ...         state.epoch += 1
        ...         sampler.set_epoch(state.epoch)
    """

    def __init__(
        self,
        dataset: Sized,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        group: Group = None,
    ) -> None:
        self._comm: Communicator = load().Communicator(group)
        self._dataset, self._shuffle, self._seed = dataset, shuffle, seed
        self._drop_last = drop_last
        self.epoch = 0
        self.processed = 0  # samples of the epoch's order, from its beginning
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch. To be called at its end, or at its beginning where it is a new one.

        Args:
            epoch: Its number.
        """
        self.epoch, self.processed = epoch, 0
        self.reset()

    def record_batch(self, batch: int, batch_size: int) -> None:
        """Tells that all ranks have done a batch. To be called after the optimizer's step.

        Args:
            batch: Its number since the sampler was last iterated over, from 0.
            batch_size: How many samples a rank has in a batch.
        """
        share = min((batch + 1) * batch_size, len(self))
        self.processed = min(self._begin + share * self._size, len(self._dataset))

    def reset(self) -> None:
        """Deals out what is left of the epoch to the present ranks. Iterating does so, too."""
        self._begin = self.processed
        self._rank, self._size = self._comm.rank, self._comm.size

    def state_dict(self) -> dict[str, Any]:
        """Returns what a state saves."""
        return {"epoch": self.epoch, "processed": self.processed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to where another sampler of the dataset was."""
        self.epoch, self.processed = state_dict["epoch"], state_dict["processed"]
        self.reset()

    def __iter__(self) -> Iterator[int]:
        """Goes through this rank's share of what is left of the epoch."""
        self.reset()
        left = self._order()[self._begin :]
        wanted = len(self) * self._size
        while 0 < len(left) < wanted:
            left = torch.cat([left, left[: wanted - len(left)]])
        return iter(left[self._rank : wanted : self._size].tolist())

    def __len__(self) -> int:
        """How many samples a rank has of what was left of the epoch."""
        left = len(self._dataset) - self._begin
        return left // self._size if self._drop_last else -(-left // self._size)

    def _order(self) -> torch.Tensor:
        if not self._shuffle:
            return torch.arange(len(self._dataset), device="cpu")
        generator = torch.Generator("cpu").manual_seed(self._seed + self.epoch)
        return torch.randperm(len(self._dataset), generator=generator, device="cpu")
