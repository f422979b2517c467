"""Programs that run: once, or in place of goccl's own algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goccl import _native
from goccl.plan._collectives import AllReduce, Broadcast, Custom, Reduce, ReduceScatter
from goccl.plan._program import Program

if TYPE_CHECKING:
    import torch
    from torch.distributed import ReduceOp

    from goccl._groups import Group


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
    they differ, or the group refuses one, none has the program, and the group goes on. A rank whose
    program is not right at all fails the group: the others are told.

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

    def prepare() -> tuple[int, int, int]:
        least, most = _bounds(bytes)
        return _checked(program), least, most

    _native.load().register_program(group, prepare)


def _checked(program: Program) -> int:
    """The handle of the library's program."""
    if not isinstance(program, Program):
        raise TypeError(f"program is a {type(program).__name__}; it must be a goccl.plan.Program")
    return program._checked().handle


def _bounds(bytes: object) -> tuple[int, int]:  # noqa: A002
    """The least and the most bytes; 0, 0 for None."""
    match (0, 0) if bytes is None else bytes:
        case (int(least), int(most)) if 0 <= least < 1 << 63 and 0 <= most < 1 << 63:
            return least, most
    raise ValueError(f"bytes is {bytes!r}; it must be a pair of numbers in 0..{(1 << 63) - 1}")


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
    _native.load().unregister_program(group, lambda: _checked(program))


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

    def prepare() -> tuple[int, bool, bool]:
        checked, kind = _checked(program), program.collective
        reduces = isinstance(kind, (AllReduce, Reduce, ReduceScatter)) or (
            isinstance(kind, Custom) and any(len(move.source) > 1 for move in program.moves)
        )
        return checked, reduces, isinstance(kind, Broadcast)

    _native.load().run_program(group, prepare, output, input, op)
