"""A copy of objects that can be sent to other ranks: their tensors apart from all the rest."""

from __future__ import annotations

import hashlib
import io
import pickle
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

Spec: TypeAlias = tuple[torch.dtype, torch.Size]


@dataclass
class Snapshot:
    """A copy of objects at one time.

    Attributes:
        version: how many copies were saved before; of copies on several ranks the one of the
            highest version is the newest.
        frame: the pickled objects, with numbers in the place of tensors.
        tensors: what is copied of them, contiguous and in host memory.
    """

    version: int
    frame: bytes
    tensors: list[torch.Tensor]

    @classmethod
    def of(cls, objects: Any, version: int, old: Snapshot | None = None) -> Snapshot:
        """Copies objects.

        Args:
            objects: what pickle takes, and tensors anywhere in it.
            version: of the copy.
            old: a copy that is needed no more, whose memory is used again where it fits.
        """
        file, tensors = io.BytesIO(), list[torch.Tensor]()
        _Pickler(file, tensors).dump(objects)
        specs = [_spec(tensor) for tensor in tensors]
        copies = old.tensors if old is not None and old.specs == specs else allocate(specs)
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor)
        return cls(version, file.getvalue(), copies)

    @property
    def specs(self) -> list[Spec]:
        """What the tensors are like."""
        return [_spec(tensor) for tensor in self.tensors]

    def objects(self) -> Any:
        """Makes the objects, which share no memory with the copy."""
        with ordinary_tensors():
            return _Unpickler(io.BytesIO(self.frame), self.tensors).load()

    def to_bytes(self) -> bytes:
        """Returns it as bytes, without the version."""
        head = pickle.dumps((self.frame, self.specs))
        tensors = [as_bytes(tensor).numpy().data for tensor in self.tensors]
        return b"".join([len(head).to_bytes(8, "little"), head, *tensors])

    @classmethod
    def from_bytes(cls, data: bytes) -> Snapshot:
        """Makes it from what to_bytes() has returned."""
        at = 8 + int.from_bytes(data[:8], "little")
        frame, specs = pickle.loads(data[8:at])
        tensors = allocate(specs)
        for tensor in tensors:
            memory = as_bytes(tensor).numpy().data
            memory[:] = data[at : at + len(memory)]
            at += len(memory)
        return cls(0, frame, tensors)

    def digests(self) -> tuple[int, int]:
        """Tells frames and tensors apart from others, as two numbers of 64 bits."""
        hashed = hashlib.blake2b(repr(self.specs).encode(), digest_size=8)
        for tensor in self.tensors:
            hashed.update(as_bytes(tensor).numpy().data)
        frame = hashlib.blake2b(self.frame, digest_size=8)
        return _number(frame.digest()), _number(hashed.digest())


def allocate(specs: list[Spec]) -> list[torch.Tensor]:
    """Makes tensors for a copy."""
    with ordinary_tensors():
        return [torch.empty(size, dtype=dtype, device="cpu") for dtype, size in specs]


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Has tensors be made that can be written outside inference mode, too."""
    gradients = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(gradients):
        yield


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8)


def _spec(tensor: torch.Tensor) -> Spec:
    return tensor.dtype, tensor.shape


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "little", signed=True)


class _Pickler(pickle.Pickler):
    """Puts tensors into a list. One that occurs twice is there once."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors
        self._numbers: dict[int, int] = {}
        # An object that is made for pickling alone would leave its id to the next one.
        self._known: list[torch.Tensor] = []

    def persistent_id(self, obj: Any) -> Any:
        # Parameters and other subclasses, and sparse tensors, are pickled as they are.
        if type(obj) is not torch.Tensor or obj.layout != torch.strided or obj.is_quantized:
            return None
        number = self._numbers.setdefault(id(obj), len(self._tensors))
        if number == len(self._tensors):
            self._tensors.append(obj.detach())
            self._known.append(obj)
        return number, obj.device, obj.requires_grad


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._copies = tensors
        self._made: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        number, device, requires_grad = pid
        if number not in self._made:
            tensor = self._copies[number].to(device, copy=True)
            self._made[number] = tensor.requires_grad_(requires_grad)
        return self._made[number]
