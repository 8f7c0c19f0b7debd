"""Forty realistic defects of provisioning, each with the rows on machines that must catch it.

They are regressions that a change could bring, not flipped operators. `./dev plants` plants one
after the other and runs only tests on machines.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from harness.payload import build_payload

from .mutant_runner import MutantRunner, PlantError
from .plants import Plant

if TYPE_CHECKING:
    from collections.abc import Iterable

_SUITES = "suites/e2e"
_PROVISIONER = "harness/provisioner/gpu_node.py"
_BAKE_KEY = "bake_key=payload.digest"
#: How many plants run at the same time, each with a machine.
_CHILDREN = 2


@dataclass(frozen=True, kw_only=True)
class MachinePlant:
    """A defect, and the tests that run with it: pytest's arguments below `suites/e2e`."""

    plant: Plant
    tests: str
    only: str | None = None
    """pytest's `-k`, where not all of the tests are about it."""

    @property
    def family(self) -> str:
        return self.tests.partition("/")[0]

    @property
    def selection(self) -> tuple[str, ...]:
        chosen = () if self.only is None else ("-k", self.only)
        return (f"{_SUITES}/{self.tests}", *chosen)


def _plant(
    name: str, file: str, change: tuple[str, str], tests: str, only: str | None = None
) -> MachinePlant:
    old, new = change
    return MachinePlant(
        plant=Plant(name=name, file=file, old=old, new=new), tests=tests, only=only
    )


PLANTS: tuple[MachinePlant, ...] = (
    _plant(
        "the kind is compared before it is mapped to its family",
        "prebake.py",
        (
            "is_same_kind(record.driver_kind, wanted.driver_type)",
            "record.driver_kind == wanted.driver_type",
        ),
        "record/test_decision.py",
        "untouched",
    ),
    _plant(
        "the version matches by its beginning",
        "prebake.py",
        (
            "record.driver_version == wanted.driver_version",
            "wanted.driver_version.startswith(record.driver_version)",
        ),
        "record/test_decision.py",
        "prefix",
    ),
    _plant(
        "the kernel matches by its beginning",
        "prebake.py",
        ("record.kernel == wanted.kernel", 'wanted.kernel.startswith(record.kernel or "")'),
        "record/test_decision.py",
        "kernel",
    ),
    _plant(
        "the architecture is not compared",
        "prebake.py",
        ("(Reason.ARCH, record.arch == wanted.arch)", "(Reason.ARCH, True)"),
        "record/test_decision.py",
        "architecture",
    ),
    _plant(
        "an unreadable record counts as none",
        "prebake.py",
        (
            "    except UnreadableFileError:\n        return Record()",
            "    except UnreadableFileError:\n        return None",
        ),
        "record/test_decision.py",
        "folder or pipe",
    ),
    _plant(
        "the success of `dkms status` proves that the module is installed",
        "kernel_modules.py",
        ("            and entry.state is DkmsState.INSTALLED\n", ""),
        "record/test_decision.py",
        "built",
    ),
    _plant(
        "the module's vermagic is not compared",
        "prebake.py",
        (
            "(Reason.VERMAGIC, proof.file.kernel == wanted.kernel)",
            "(Reason.VERMAGIC, proof.file.kernel is not None)",
        ),
        "record/test_decision.py",
        "module",
    ),
    _plant(
        "modules are unloaded in the wrong order",
        "kernel_modules.py",
        (
            'UNLOAD_ORDER = ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", MODULE)',
            'UNLOAD_ORDER = (MODULE, "nvidia_peermem", "nvidia_modeset", "nvidia_drm", "nvidia_uvm")',
        ),
        "teardown/test_removal.py",
        "idle",
    ),
    _plant(
        "references of dependent modules make the driver busy",
        "kernel_modules.py",
        ("module.references > len(module.holders)", "module.references > 0"),
        "teardown/test_removal.py",
        "idle",
    ),
    _plant(
        "the record goes although the removal is incomplete",
        "teardown.py",
        (
            "is_clean = _has_nothing_left(node, after, removal) and _is_removed(node, scope.record_path)",
            "is_clean = _is_removed(node, scope.record_path) and _has_nothing_left(node, after, removal)",
        ),
        "teardown/test_removal.py",
        "in_use or cannot",
    ),
    _plant(
        "a driver of the customer is removed too",
        "teardown.py",
        (
            "version = customer_version(residue) if scope.is_opted_out else None",
            "version = None",
        ),
        "teardown/test_removal.py",
        "customer",
    ),
    _plant(
        "the driver image is looked for by a regular expression",
        "containerd.py",
        ('f"name=={image.name}"', 'f"name~={image.name}"'),
        "registry/test_pull.py",
        "dot",
    ),
    _plant(
        "the driver image is pulled although it is there",
        "containerd.py",
        ("is_met=_prints_nothing", "is_met=lambda _: True"),
        "registry/test_pull.py",
        "present",
    ),
    _plant(
        "a pull is tried once",
        "containerd.py",
        (
            "PULL = Retry(attempts=3, pause_s=5, timeout_s=120)",
            "PULL = Retry(attempts=1, pause_s=5, timeout_s=120)",
        ),
        "registry/test_pull.py",
        "refused_pull_is_tried_again",
    ),
    _plant(
        "the tries of a pull follow each other at once",
        "containerd.py",
        (
            "PULL = Retry(attempts=3, pause_s=5, timeout_s=120)",
            "PULL = Retry(attempts=3, pause_s=0.5, timeout_s=120)",
        ),
        "registry/test_pull.py",
        "refused_pull_is_tried_again",
    ),
    _plant(
        "an image of a sovereign cloud is not renamed",
        "containerd.py",
        (
            'Run(argv=(*CTR, "image", "tag", image.pull_reference, image.name), retry=LOCAL),',
            "",
        ),
        "registry/test_pull.py",
        "sovereign",
    ),
    _plant(
        "boot waits until the driver image is collected",
        "containerd.py",
        (
            'return Run(argv=(*CTR, "images", "rm", *names), retry=LOCAL)',
            'return Run(argv=(*CTR, "images", "rm", "--sync", *names), retry=LOCAL)',
        ),
        "registry/test_removal.py",
    ),
    _plant(
        "an error of the registry is taken for a missing precompiled image",
        "precompiled_driver.py",
        ("if result.ok or _MISSING not in result.stderr:", "if result.ok:"),
        "precompiled/test_precompiled.py",
        "refusing",
    ),
    _plant(
        "a precompiled image is wanted although the baked module fits",
        "driver.py",
        (
            "if precompiled is None or decision.action is Action.INSTALL_SKIP_BUILD:",
            "if precompiled is None:",
        ),
        "precompiled/test_precompiled.py",
        "baked",
    ),
    _plant(
        "the tag of a precompiled image does not name the kernel",
        "precompiled.py",
        (
            "{self.image}:{self.version}-{self.kernel}-{self.os_tag}",
            "{self.image}:{self.version}-{self.os_tag}",
        ),
        "precompiled/test_precompiled.py",
        "used",
    ),
)


class MachineRunner(MutantRunner):
    """Runs machine tests on a copy of the sources, with the image that the unplanted ones baked."""

    def pin_bake(self) -> None:
        """Let the copy use the image that is baked already; the defects are not about the bake."""
        path = self.top / _PROVISIONER
        text = path.read_text()
        if text.count(_BAKE_KEY) != 1:
            raise PlantError(f"'{_BAKE_KEY}' was expected once in '{_PROVISIONER}'.")
        path.write_text(text.replace(_BAKE_KEY, f'bake_key="{build_payload().digest}"'))


def run_plants(repository: Path, wanted: str | None, image: str) -> int:
    """Plant each defect whose name or family matches `wanted`, and print what caught it.

    Returns 0 if all but two of them were caught, else 1.
    """
    chosen = [
        each
        for each in PLANTS
        if wanted is None or re.search(wanted, f"{each.family}: {each.plant.name}")
    ]
    with ThreadPoolExecutor(_CHILDREN) as pool:
        results = pool.map(lambda each: _run(repository, each, image), chosen)
        caught = sum(_report(results, chosen))
    sys.stdout.write(f"{caught} of {len(chosen)} caught\n")
    return 0 if caught >= len(chosen) - 2 else 1


def _run(repository: Path, each: MachinePlant, image: str) -> str | None:
    with TemporaryDirectory(prefix="plant-") as folder:
        runner = MachineRunner.copy(repository, Path(folder))
        runner.pin_bake()
        return runner.run(each.plant, *each.selection, "-n0", f"--image={image}").killer


def _report(results: Iterable[str | None], chosen: Iterable[MachinePlant]) -> Iterable[bool]:
    for each, killer in zip(chosen, results, strict=True):
        verdict = "NOT CAUGHT" if killer is None else f"caught by {killer}"
        sys.stdout.write(f"{each.family}: {each.plant.name}\n    {verdict}\n")
        sys.stdout.flush()
        yield killer is not None
