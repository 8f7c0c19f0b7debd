"""Loads a module when one of its attributes is used, not when the module is imported."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from typing_extensions import override


class _LateModule(ModuleType):
    """Stands for a module until an attribute of the module is used.

    `importlib.util.LazyLoader` does not work here: in Python 3.11 every `import` loads the module.
    """

    @override
    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def load_on_use(*names: str) -> None:
    """Make `import NAME` return at once; load the module when one of its attributes is used.

    A module that is already loaded does not change. Callers must import names of a submodule by
    `from NAME.PART import …`, not by `import NAME.PART`.
    """
    for name in names:
        sys.modules.setdefault(name, _LateModule(name))
