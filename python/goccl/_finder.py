"""Has `import goccl._C` find the extension for the torch that is here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType

_NAME = "goccl._C"


class _Finder(MetaPathFinder):
    """Is asked first: a file that an older build has left beside this one is not to be found.

    Python holds its one import lock meanwhile. So nothing is imported here: another thread may hold
    a module's lock, and wait for that one.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(_NAME, _Loader(_NAME, "")) if fullname == _NAME else None


class _Loader(ExtensionFileLoader):
    """Loads the file that fits, once torch has been imported."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        from goccl import _native

        files = _native.files()  # imports torch
        spec.has_location = True
        if _NAME in sys.modules:  # torch's import has loaded it, when goccl registered
            there = sys.modules[_NAME]
            self.path = spec.origin = str(there.__file__)
            return there
        problems = []
        for file in files:
            self.path = spec.origin = str(file)
            try:
                return super().create_module(spec)
            except ImportError as error:
                problems.append(f"{file} cannot be loaded here: {error}")
        raise ImportError(f"goccl's extension {'; '.join(problems)}. {_native.remedy(newer=False)}")


sys.meta_path.insert(0, _Finder())
