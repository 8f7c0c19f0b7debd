"""An import hook that makes Python import `harness` without pytest's assertion rewriting.

Importing this module installs the hook, so the plugin imports this module before all other modules.
pytest rewrites every module of a distribution that has a plugin. If pytest can't write its bytecode
cache, each process compiles the rewritten modules again. Compiling the modules takes longer than
all other work of the plugin at the start. Rewriting is useless for `harness`, which has no
assertions that a report would explain.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class PlainImports(MetaPathFinder):
    """Finds the modules of `harness` as Python does; Python asks this finder before pytest's finder."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path) if fullname.startswith("harness.") else None


sys.meta_path.insert(0, PlainImports())
