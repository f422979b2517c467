"""What programs may be of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Collective:
    """What a program does. Each kind is a class of its own.

    Attributes:
        root: The root of a rooted collective, else 0.
    """

    root: int = 0

    @property
    def name(self) -> str:
        """Its name in files, as "reduce_scatter"."""
        return _NAMES[type(self)]

    def sizes(self, ranks: int, chunks: int) -> tuple[int, int]:
        """How many chunks the input and the output of a rank have.

        Args:
            ranks: How many ranks there are.
            chunks: Chunks of a block.
        """
        many = {AllGather: (1, ranks), Gather: (1, ranks), ReduceScatter: (ranks, 1)}
        many |= {Scatter: (ranks, 1), AllToAll: (ranks, ranks)}
        inputs, outputs = many.get(type(self), (1, 1))
        return inputs * chunks, outputs * chunks


@dataclass(frozen=True)
class _Rootless(Collective):
    def __init__(self) -> None:
        super().__init__()


@dataclass(frozen=True, init=False)
class AllReduce(_Rootless):
    """Every rank gets the sum of all inputs."""


@dataclass(frozen=True)
class Reduce(Collective):
    """The root gets the sum of all inputs."""


@dataclass(frozen=True)
class Broadcast(Collective):
    """Every rank gets the root's input, which is the root's output as well."""


@dataclass(frozen=True, init=False)
class AllGather(_Rootless):
    """Every rank gets the blocks of all."""


@dataclass(frozen=True, init=False)
class ReduceScatter(_Rootless):
    """Each rank gets the sum of its block of all inputs."""


@dataclass(frozen=True)
class Gather(Collective):
    """The root gets the blocks of all."""


@dataclass(frozen=True)
class Scatter(Collective):
    """Each rank gets its block of the root's input."""


@dataclass(frozen=True, init=False)
class AllToAll(_Rootless):
    """Each rank gets its block of the input of each. All blocks are equally long."""


@dataclass(frozen=True)
class Custom(Collective):
    """What the program says. It promises nothing of its outputs.

    Attributes:
        inputs: Chunks of the input of each rank.
        outputs: Chunks of the output of each rank.
    """

    inputs: int = 0
    outputs: int = 0

    def __init__(self, inputs: int, outputs: int) -> None:
        object.__setattr__(self, "root", 0)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "outputs", outputs)

    def sizes(self, ranks: int, chunks: int) -> tuple[int, int]:
        """The chunks of the input and of the output of a rank, as given."""
        return self.inputs, self.outputs


_NAMES: dict[type[Collective], str] = {
    AllReduce: "allreduce",
    Reduce: "reduce",
    Broadcast: "broadcast",
    AllGather: "allgather",
    ReduceScatter: "reduce_scatter",
    Gather: "gather",
    Scatter: "scatter",
    AllToAll: "alltoall",
    Custom: "custom",
}


def named(name: str, root: int = 0) -> Collective:
    """The collective of a name, as "allreduce", but for "custom".

    Args:
        name: As files have it.
        root: Of a rooted collective, else 0.

    Raises:
        ValueError: There is none of that name, or it has no root.
    """
    kinds = {known: kind for kind, known in _NAMES.items() if kind is not Custom}
    if name not in kinds:
        raise ValueError(f"collective is {name!r}, allowed are {', '.join(kinds)}")
    kind = kinds[name]
    if not issubclass(kind, _Rootless):
        return kind(root)
    if root != 0:
        raise ValueError(f"root is {root}; {name} has none, and it must be 0")
    return kind()
