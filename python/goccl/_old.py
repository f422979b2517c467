"""Names of goccl 0.1, which warn, and which the release after the next one has no more."""

from __future__ import annotations

import warnings


def warn_of_old(old: str, new: str, stacklevel: int = 3) -> None:
    """Warns of the use of an old name.

    Args:
        old: the name that is used.
        new: the name to use instead.
        stacklevel: of warnings.warn(): where the user's code is, seen from here.
    """
    text = f"goccl: {old} is now {new}; the old name goes after one release"
    warnings.warn(text, DeprecationWarning, stacklevel)
