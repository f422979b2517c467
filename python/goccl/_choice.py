"""Contexts in which a thread's collectives go another way."""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import TYPE_CHECKING, TypeVar

from goccl._native import load

if TYPE_CHECKING:
    from types import TracebackType

_Self = TypeVar("_Self", bound="ThreadChoice")


class ThreadChoice(ContextDecorator):
    """A context with a choice of the thread's, after which the one before holds again."""

    def __init__(self, exchange: str, choice: str) -> None:
        """exchange: the function of goccl._C that makes a choice and returns the one before."""
        self._exchange, self._choice = exchange, choice
        self._before: list[str | None] = []

    def __enter__(self: _Self) -> _Self:
        self._before.append(getattr(load(), self._exchange)(self._choice))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        getattr(load(), self._exchange)(self._before.pop())
