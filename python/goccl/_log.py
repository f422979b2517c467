"""Takes the library's log to Python's logging."""

from __future__ import annotations

import logging
import sys
from types import ModuleType

from goccl import _capi

_NAME = "goccl"
_SUBSYSTEMS = ("INIT", "BOOTSTRAP", "ENV", "NET", "COLL", "P2P", "MEM")
_OFF = logging.CRITICAL + 1
# By their numbers in goccl.h.
_LEVELS = {1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG}
# By their names in GOCCL_DEBUG; any other is warned of, and taken for WARN.
_NAMED = {"NONE": _OFF, "INFO": logging.INFO, "TRACE": logging.DEBUG}

_attached = 0  # the level of what _hear hears, by its number; 0: nothing
_debug = ""  # GOCCL_DEBUG, when the last group was made


def attach(native: ModuleType) -> None:
    """Has Python's logging take the library's log over, if it has been configured.

    That is so where a record of the logger "goccl", or of one of its children, has a handler to go
    to, such as after logging.basicConfig(). Else the library writes its log itself: to standard
    error, or to GOCCL_DEBUG_FILE. Called whenever a group is made, so what the program has
    configured until then holds.

    Args:
        native: goccl._C.
    """
    global _attached, _debug
    _debug = _capi.getenv("GOCCL_DEBUG").upper()
    loggers = [_logger(subsystem) for subsystem in _SUBSYSTEMS]
    level = 0
    if any(logger.hasHandlers() for logger in loggers):
        wanted = min(map(_threshold, loggers))
        # Not less than warnings: what is heard is looked at again.
        level = next((n for n, of in sorted(_LEVELS.items(), reverse=True) if of >= wanted), 1)
    if level != _attached:
        native._set_logger(_hear if level else None, level)
        _attached = level


def _logger(subsystem: str) -> logging.Logger:
    return logging.getLogger(f"{_NAME}.{subsystem.lower()}")


def _threshold(logger: logging.Logger) -> int:
    """Returns the level from which on records of a child of the logger "goccl" are wanted.

    It is that which the program has given the child or the logger "goccl" itself; else that of
    GOCCL_DEBUG; else the one that holds for all of the program.
    """
    if _debug and logger.level == logging.getLogger(_NAME).level == logging.NOTSET:
        return _NAMED.get(_debug, logging.WARNING)
    return logger.getEffectiveLevel()


def inform(text: str, group: str, rank: int) -> None:
    """Logs something of a group at the level INFO, where the library's own records go.

    Without Python's logging that is standard error, never GOCCL_DEBUG_FILE, which the library has.

    Args:
        text: what is to be said.
        group: the name of the group.
        rank: this process in the group.
    """
    text = f"[{group}] rank {rank}: {text}"
    logger = _logger("INIT")
    if logger.hasHandlers():
        if _threshold(logger) <= logging.INFO:
            logger.handle(
                logger.makeRecord(logger.name, logging.INFO, "(goccl)", 0, text, (), None)
            )
    elif _debug in ("INFO", "TRACE"):
        print(f"goccl: INFO INIT {text}", file=sys.stderr)


def _hear(
    number: int, time_ns: int, subsystem: str, group: str | None, rank: int, text: str
) -> None:
    """Hands a record of the library on. Runs on a thread of the library."""
    logger, level = _logger(subsystem), _LEVELS[number]
    if level < _threshold(logger) or level <= logger.manager.disable:
        return
    if group is not None:
        text = f"[{group}] rank {rank}: {text}"
    extra = {"goccl_subsystem": subsystem, "goccl_group": group, "goccl_rank": rank}
    record = logger.makeRecord(logger.name, level, "(goccl)", 0, text, (), None, extra=extra)
    record.created, record.msecs = time_ns / 1e9, float(time_ns // 1_000_000 % 1000)
    logger.handle(record)
