"""The C++ part of goccl. Importing it loads no Go: that happens at the first process group."""

from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Literal, SupportsIndex, TypeAlias

import torch
from torch import Tensor, dtype
from torch._C._distributed_c10d import Backend, ProcessGroup, ReduceOp, Store
from torch._C._distributed_c10d import Work as _Work
from typing_extensions import Self, deprecated

from goccl._groups import Member
from goccl._options import OptionFields

_ReduceOp: TypeAlias = (
    Literal["sum", "avg", "product", "min", "max", "band", "bor", "bxor"]
    | ReduceOp
    | ReduceOp.RedOpType
)

torch_version: str

def leave_groups() -> None: ...
def register_program(
    group: ProcessGroup | Communicator | ProcessGroupGoccl | None,
    prepare: Callable[[], tuple[int, int, int]],
) -> None: ...
def unregister_program(
    group: ProcessGroup | Communicator | ProcessGroupGoccl | None,
    prepare: Callable[[], int],
) -> None: ...
def run_program(
    group: ProcessGroup | Communicator | ProcessGroupGoccl | None,
    prepare: Callable[[], tuple[int, bool, bool]],
    output: Tensor | None,
    input: Tensor | None,  # noqa: A002
    op: _ReduceOp,
) -> None: ...
def _set_logger(
    function: Callable[[int, int, str, str | None, int, str], None] | None, level: int = 0
) -> None: ...
def describe(
    group: ProcessGroup | Communicator | ProcessGroupGoccl | None, function: str
) -> str: ...
def algorithm(
    group: ProcessGroup | Communicator | ProcessGroupGoccl | None,
    sequence: int | None,
    function: str,
) -> str: ...

class _Members:
    def recover(self, timeout: timedelta | None = None) -> None:
        """Goes on with the members that are left, in the same group with fewer ranks."""

    def revoke(self, reason: str = "") -> None:
        """Fails the group at once on all ranks, which then call recover()."""

    def agree(self, flags: int) -> int:
        """Returns the bits that are set in the flags of all members which are left."""

    def join(self, handles: list[str] = ..., timeout: timedelta | None = None) -> None:
        """Makes this process, which is a group of one, a member of a group that exists."""

    def publish(self) -> None:
        """Lets processes find this group that call join() without handles."""

    @property
    def handle(self) -> str: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    @deprecated("is now num_waiting")
    def joining(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def members(self) -> list[Member]: ...
    def checkpoint(
        self, global_model: bytes, local_model: bytes | None = None, replicas: int = 1
    ) -> None:
        """Makes the next version of the models, in the memory of the members."""

    def load_checkpoint(self) -> tuple[int, bytes, bytes, list[tuple[int, bytes | None]]]:
        """Returns the newest version that counts, this rank's models of it, and orphans."""

    @property
    def checkpoint_version(self) -> int: ...
    @property
    @deprecated("is now checkpoint_version")
    def version_number(self) -> int: ...

class ProcessGroupGoccl(_Members, Backend):
    class Options(OptionFields, Backend.Options):
        @property
        def timeout(self) -> timedelta: ...
        @timeout.setter
        def timeout(self, given: timedelta | None) -> None: ...
        def _for_group(self, timeout: timedelta) -> ProcessGroupGoccl.Options: ...

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        options: Options | None = None,
        group_name: str = "",
        global_ranks: list[int] = ...,
    ) -> None: ...
    def transport(self, peer: int) -> str: ...
    @property
    def options(self) -> Options: ...
    def _drop_batch(self, why: str, collective: bool) -> None: ...

class Work(_Work):
    """What collectives, sends and receives of the back end return."""

    def contributors(self) -> int:
        """Tells with how many ranks' contributions the collectives have ended."""

class Communicator(_Members):
    """Blocking collectives, sends and receives of CPU tensors, with less around them than
    torch.distributed's functions have.

    Its collectives take their places in the one order of the group's, and may be mixed with those
    of torch.distributed. Ranks count within the group. See help(goccl.Communicator).

    group: a process group with the back end goccl; None for the default group.
    """

    def __init__(
        self, group: ProcessGroup | Communicator | ProcessGroupGoccl | None = None
    ) -> None: ...
    @property
    def _backend(self) -> ProcessGroupGoccl: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def all_reduce_(
        self, tensor: Tensor, op: _ReduceOp = "sum", *, wire_dtype: dtype | None = None
    ) -> None:
        """Reduces over all ranks' tensors, element by element, and leaves the result in each of
        them."""

    def broadcast_(self, tensor: Tensor, src: int, *, wire_dtype: dtype | None = None) -> None:
        """Copies the tensor of rank `src` to that of every other rank."""

    def reduce_(
        self, tensor: Tensor, dst: int, op: _ReduceOp = "sum", *, wire_dtype: dtype | None = None
    ) -> None:
        """Reduces over all ranks' tensors and leaves the result in that of rank `dst`."""

    def all_gather_into(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        *,
        wire_dtype: dtype | None = None,
    ) -> None:
        """Fills `output` with the inputs of all ranks, one after the other in the order of
        ranks."""

    def reduce_scatter_into(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        op: _ReduceOp = "sum",
        *,
        wire_dtype: dtype | None = None,
    ) -> None:
        """Reduces over all ranks' inputs, and fills `output` with this rank's part of the
        result."""

    def all_to_all_into(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        *,
        schedule: str = "",
        wire_dtype: dtype | None = None,
    ) -> None:
        """Sends part r of `input` to rank r, and receives part r of `output` from it.

        schedule: "sequential", "window=2" and the like, or "parallel"; "" for that of the group.
        """

    def gather_into(
        self,
        output: Tensor | None,
        input: Tensor,  # noqa: A002
        dst: int,
        *,
        wire_dtype: dtype | None = None,
    ) -> None:
        """Fills `output` of rank `dst` with the inputs of all ranks, one after the other in the
        order of ranks."""

    def scatter_into(
        self,
        output: Tensor,
        input: Tensor | None,  # noqa: A002
        src: int,
        *,
        wire_dtype: dtype | None = None,
    ) -> None:
        """Fills the output of each rank with its part of the input of rank `src`."""

    def send(
        self, tensor: Tensor, dst: int, *, tag: int = 0, timeout: timedelta | None = None
    ) -> None:
        """Sends a tensor to rank `dst`."""

    def recv(
        self,
        tensor: Tensor,
        src: int | None = None,
        *,
        tag: int = 0,
        timeout: timedelta | None = None,
    ) -> int:
        """Receives into a tensor what rank `src`, or any, sends, and returns who has sent it."""

    def reconfigure(
        self, uuid: str, handles: list[str] | set[str], *, timeout: timedelta | None = None
    ) -> None:
        """Makes the processes of the handles the group's members, in place."""

    def barrier(self) -> None:
        """Returns when every rank of the group has called it."""

    def register(self, tensor: Tensor, access: Literal["r", "w", "rw"] = "rw") -> Memory:
        """Lets peers read or write a tensor, by channels."""

    def exchange(self, mem: Memory | None) -> list[RemoteMemory | None]:
        """Gives the memory of each rank to all."""

    def import_memory(self, rank: int, handle: bytes, dtype: torch.dtype) -> RemoteMemory:
        """Makes memory known here whose handle a rank has sent."""

    def channel(
        self, peer: int, tag: int = 0, kind: Literal["memory", "port"] | None = None
    ) -> Channel:
        """Opens this rank's end of a channel, which the peer opens by the same tag."""

    def proxy(self, size: int = 512) -> Proxy:
        """Makes a proxy, which makes calls of channels for threads that must not wait."""

class Memory:
    """A tensor that peers may read or write: see Communicator.register()."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    @property
    def tensor(self) -> Tensor: ...
    @property
    def handle(self) -> bytes: ...
    def deregister(self) -> None:
        """Ends what register() has begun."""

class RemoteMemory:
    """Memory of a rank that its peers reach."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: SupportsIndex | slice) -> RemoteMemory: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def rank(self) -> int: ...
    def map(self) -> Tensor:
        """Returns a tensor over the memory itself, of one dimension."""

    def deregister(self) -> None:
        """Ends the use of the memory here."""

class Channel:
    """One-sided communication with a rank: Communicator.channel() opens it."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    @property
    def kind(self) -> str: ...
    @property
    def peer(self) -> int: ...
    @property
    def tag(self) -> int: ...
    def put(self, dst: RemoteMemory, src: Tensor) -> None:
        """Copies a tensor to memory of the peer."""

    def put_signal(self, dst: RemoteMemory, src: Tensor, n: int = 1) -> None:
        """Makes a put() and then a signal(), in one."""

    def get(self, dst: Tensor, src: RemoteMemory) -> None:
        """Copies memory of the peer to a tensor."""

    def signal(self, n: int = 1) -> None:
        """Adds to the count of the peer's end."""

    def wait(self, n: int = 1, timeout: float | timedelta | None = None) -> None:
        """Takes signals of the peer, once so many have come."""

    def poll(self, n: int = 1) -> bool:
        """Takes signals of the peer if so many have come."""

    def flush(self, timeout: float | timedelta | None = None) -> None:
        """Waits until all puts that came before it are in the peer's memory, and all gets here."""

    def close(self) -> None:
        """Closes this end."""

class Proxy:
    """Makes calls of channels for threads that must not wait: Communicator.proxy() makes it."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    def put(self, channel: Channel, dst: RemoteMemory, src: Memory | RemoteMemory) -> int:
        """Has a channel put registered memory of this rank to memory of its peer."""

    def put_signal(
        self, channel: Channel, dst: RemoteMemory, src: Memory | RemoteMemory, n: int = 1
    ) -> int:
        """Makes a put() and then a signal(), in one."""

    def get(self, channel: Channel, dst: Memory | RemoteMemory, src: RemoteMemory) -> int:
        """Has a channel get memory of its peer."""

    def signal(self, channel: Channel, n: int = 1) -> int:
        """Has a channel add to the count of its peer."""

    def flush(self, channel: Channel) -> int:
        """Has a channel flush."""

    def wait(self, position: int, timeout: float | timedelta | None = None) -> None:
        """Waits until a trigger is done."""

    def stop(self, timeout: float | timedelta | None = None) -> None:
        """Takes no more triggers, and waits until all are done."""

    def close(self) -> None:
        """Ends the proxy."""

def empty(size: list[int], dtype: dtype) -> Tensor: ...
def is_shareable(tensor: Tensor) -> bool: ...
def enter_pool() -> None: ...
def exchange_side_step(backend: str | None) -> str | None: ...
def exchange_wire_dtype(name: str | None) -> str | None: ...
def leave_pool() -> None: ...
def memory_stats() -> dict[str, int]: ...
