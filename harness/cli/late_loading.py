"""Loads a module when one of its attributes is used, not when it is imported."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from typing_extensions import override


class _LateModule(ModuleType):
    """Stands for a module until something of it is used.

    `importlib.util.LazyLoader` would not do: in Python 3.11 every `import` of the module loads it.
    """

    @override
    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def load_on_use(*names: str) -> None:
    """Let `import NAME` return at once; the module loads when one of its attributes is used.

    A module that is loaded stays as it is. Import names of a submodule by
    `from NAME.PART import …`, not by `import NAME.PART`.
    """
    for name in names:
        sys.modules.setdefault(name, _LateModule(name))
