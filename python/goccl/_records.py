"""Records in JSON that another process has written, of any version or none."""

from __future__ import annotations

import json
import math
from typing import Any, get_type_hints

_KINDS: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (int, float),
    str: (str,),
    bool: (bool,),
    dict: (dict,),
    list: (list,),
}


def loads(text: str | bytes) -> Any:
    """Reads JSON, and no NaN or Infinity, which Python also reads.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deep.
    """
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no number of JSON, or too large")
    return number


def check(record: Any) -> None:
    """Looks at the types of a dataclass: of fields that are numbers, texts or collections.

    Raises:
        TypeError: a field is of another type, which the text names.
        ValueError, OverflowError: a number is not finite, or too large to calculate with.
    """
    for name, hint in get_type_hints(type(record)).items():
        allowed = _KINDS.get(getattr(hint, "__origin__", hint))
        value = getattr(record, name)
        if allowed and (
            not isinstance(value, allowed) or isinstance(value, bool) != (hint is bool)
        ):
            raise TypeError(f"{name} is {value!r}")
        if hint is float and not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}")
        if hint == dict[str, str] and not all(isinstance(v, str) for v in value.values()):
            raise TypeError(f"{name} is {value!r}")
