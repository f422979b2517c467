"""Calls a function as soon as a module has been imported, whenever that will be."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(module: str, then: Callable[[], None]) -> None:
    """Calls `then` at once where the module is there, else right after its first import.

    Args:
        module: the name of a top-level module, which is not imported for this.
        then: is called in the thread that imports the module, and must not raise. Several are
            called in the order in which they were given.
    """
    if sys.modules.get(module):
        then()
        return
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) and finder.module == module:
            finder.calls.append(then)
            return
    sys.meta_path.insert(0, _Finder(module, then))


class _Finder(MetaPathFinder):
    """Is asked first where the module is, and has those that know make the calls."""

    def __init__(self, module: str, then: Callable[[], None]) -> None:
        self.module = module
        self.calls = [then]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_then(module: ModuleType) -> None:
            execute(module)
            # Until then, for who asks for the spec need not import the module.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            for then in self.calls:
                then()

        spec.loader.exec_module = execute_and_then  # type: ignore[method-assign]
        return spec
