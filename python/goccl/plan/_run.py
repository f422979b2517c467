"""Programs that run: once, or in place of goccl's own algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goccl import _native
from goccl.plan._collectives import AllReduce, Broadcast, Custom, Reduce, ReduceScatter

if TYPE_CHECKING:
    import torch
    from torch.distributed import ReduceOp

    from goccl._groups import Group
    from goccl.plan._program import Program


def register(
    program: Program,
    group: Group = None,
    bytes: tuple[int, int] | None = None,  # noqa: A002
) -> None:
    """Has a program run the collectives of a group that it fits, from the next one on, until the
    members of the group change.

    It runs those that it is of, among as many ranks, with its root, with a dtype and an op whose
    sums it may order; of `torch.distributed`, DDP, `goccl.Communicator` and all others. Of several
    programs the last runs them. Algorithms that GOCCL_ALGO names for the collective come first.
    `goccl.algorithm` tells "plan:" and the name of the program. Groups that are made of this one
    have it not: see `plans` of `goccl.Options`.

    A collective call: all ranks call it, with programs that do the same, and the same `bytes`. If
    one does not, or is refused, none has the program, and the group goes on.

    Args:
        program: The program.
        group: A process group with the backend goccl; None: the default group.
        bytes: For which lengths of a rank's larger buffer, both inclusive; a second one of 0: no
            limit. None: as the program says.

    Raises:
        ValueError: The program is not right, does not fit the group, or is registered already.
        goccl.MismatchError: The ranks gave different ones, or one was refused.

    Example:
        >>> plan.register(two_shot(4), bytes=(4096, 1 << 20))
        >>> dist.all_reduce(tensor)
        >>> goccl.algorithm()
        'plan:two_shot'
    """
    least, most = bytes or (0, 0)
    for value in (least, most):
        if not 0 <= value < 1 << 63:
            raise ValueError(f"bytes is {bytes}; both must be in 0..{(1 << 63) - 1}")
    _native.load().register_program(group, program._checked(), least, most)


def unregister(program: Program, group: Group = None) -> None:
    """Undoes `register`, from the next collective on: of the program that does the same.

    A collective call, as `register`.

    Args:
        program: The program.
        group: A process group with the backend goccl; None: the default group.

    Raises:
        ValueError: It is not registered.
        goccl.MismatchError: The ranks gave different ones, or one was refused.
    """
    _native.load().unregister_program(group, program._checked())


def run(
    program: Program,
    group: Group = None,
    input: torch.Tensor | None = None,  # noqa: A002
    output: torch.Tensor | None = None,
    op: str | ReduceOp = "sum",
) -> None:
    """Runs a program once, and returns when `output` is ready. A collective call.

    Args:
        program: The same on all ranks.
        group: A process group with the backend goccl, of as many ranks; None: the default group.
        input: Of any shape on the CPU, as the collective has it; where that has a block for each
            rank they lie one after the other. Of a custom program as many chunks as it says, all
            equally long. None where this rank has none, and of a broadcast.
        output: Likewise, of the same dtype; of a broadcast the buffer. It may be `input`, as far as
            the collective has a form in place.
        op: The reduce operation, where the program reduces: see `goccl.Communicator`. A custom
            program reduces with one of which parts may be reduced further, such as "max", or "sum"
            of dtypes that are no 16-bit floats.

    Raises:
        ValueError: The program is not right, does not fit the group, or the tensors do not fit it.
        torch.distributed.DistBackendError: A peer has failed, was refused or is late.

    Example:
        >>> plan.run(halo, group, borders, neighbours)
    """
    kind = program.collective
    reduces = isinstance(kind, (AllReduce, Reduce, ReduceScatter)) or (
        isinstance(kind, Custom) and any(len(move.source) > 1 for move in program.moves)
    )
    _native.load().run_program(
        group, program._checked(), output, input, op, reduces, isinstance(kind, Broadcast)
    )
