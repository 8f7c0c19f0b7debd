"""Sets up the shell of a translated test like the shell of the spec from which the test was translated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.shell.spec.migrated_project import MOCKS
from harness.shell.spec.project import SHELLSPEC_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.shell.warm_shell.shell import Shell

_RUNTIME = Path(__file__).parent / "spec" / "runtime" / "surroundings.sh"


def give_surroundings(
    shell: Shell,
    *,
    spec: str,
    project: str = "",
    exec_dir: str = "",
    helper_dir: str = "spec",
    requires: Sequence[str] = (),
    load_path: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    env_from: str | None = None,
    path: str | None = None,
    only_path: str | None = None,
) -> None:
    """Set a spec's variables and source its helper modules, before the code under test is sourced.

    The parameters have the names of the options in `.shellspec`. `project` is the project's
    directory, relative to pytest's root directory; other paths are relative to `project`.
    `only_path` replaces PATH, except the directories of mocks and support commands at the beginning
    of PATH.
    """
    optional = {"HX_ENV_FROM": env_from, "HX_PROJECT_PATH": path, "HX_ONLY_PATH": only_path}
    shell.source(
        _RUNTIME,
        env={
            **(env or {}),
            "HX_PROJECT": project,
            "HX_EXEC_DIR": exec_dir,
            "HX_HELPER_DIR": helper_dir,
            "HX_LOAD_PATH": ":".join(load_path),
            "HX_REQUIRE": " ".join(requires),
            "HX_MOCKS": MOCKS,
            "SHELLSPEC_SPECFILE": spec,
            "SHELLSPEC_VERSION": SHELLSPEC_VERSION,
            **{name: value for name, value in optional.items() if value is not None},
        },
    )
    if requires:  # the helper modules may have added hooks
        shell.define("__hx_run_before_all; __hx_run_before_each")
