"""The inventory, in which an administrator sets GPU models and excludes GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.gpu.passthrough import VerdictKind
from harness.gpu.passthrough.inventory import Inventory, read_inventory
from harness.gpu.passthrough.pool import GpuPool
from suites.unit.gpu.passthrough.fake_host import NVME_CLASS, FakeHost, FakeKernel
from suites.unit.gpu.passthrough.leasing import GPU, SECOND, lease

if TYPE_CHECKING:
    from pathlib import Path

MODELS = ("l4", "h100-pcie")


def read(tmp_path: Path, text: str) -> Inventory:
    file = tmp_path / "gpus.yaml"
    file.write_text(text)
    return read_inventory(file, MODELS)


def pool(host: FakeHost, inventory: Inventory, tmp_path: Path) -> GpuPool:
    return GpuPool(
        tmp_path / "leases", inventory=inventory, root=host.root, runner=FakeKernel(host)
    )


def verdicts(host: FakeHost, inventory: Inventory, tmp_path: Path) -> dict[str, VerdictKind]:
    gpus = pool(host, inventory, tmp_path).survey()
    return {gpu.address: gpu.verdict.kind for gpu in gpus}


def test_inventory_sets_the_model_of_a_gpu_and_excludes_another_gpu(
    tmp_path: Path, host: FakeHost
) -> None:
    inventory = read(
        tmp_path,
        'schema: 1\ngpus:\n  "0000:65:00.0": {model: l4}\n'
        '  "66:00.0": {exclude: the display of a workstation}\n',
    )

    gpus = pool(host, inventory, tmp_path).survey()

    assert [(gpu.model, gpu.verdict.is_usable) for gpu in gpus] == [("l4", True), (None, False)]
    assert gpus[1].verdict.reason == (
        f"'{tmp_path / 'gpus.yaml'}' excludes the GPU: the display of a workstation."
    )


def test_gpu_listed_without_keys_is_usable_if_the_inventory_excludes_all_others(
    tmp_path: Path, host: FakeHost
) -> None:
    inventory = read(tmp_path, 'gpus:\n  "0000:65:00.0":\nothers: exclude\n')

    assert verdicts(host, inventory, tmp_path) == {
        GPU: VerdictKind.USABLE,
        SECOND: VerdictKind.REFUSED,
    }
    none = read(tmp_path, "others: exclude\n")
    assert set(verdicts(host, none, tmp_path).values()) == {VerdictKind.REFUSED}


def test_excluded_gpu_is_not_leased(tmp_path: Path, host: FakeHost) -> None:
    inventory = read(tmp_path, 'gpus:\n  "0000:65:00.0": {exclude: broken fan}\n')

    with lease(pool(host, inventory, tmp_path)) as (gpu,):
        assert gpu.gpu.address == SECOND


def test_error_for_an_invalid_inventory_mentions_the_file_and_the_key(tmp_path: Path) -> None:
    for text, message in (
        (
            "gpu: {}\n",
            r"gpus\.yaml:1: key 'gpu': This key is not known here; the known keys are 'schema', 'g",
        ),
        (
            'gpus:\n  "0000:65:00.0":\n    exlude: x\n',
            r"gpus\.yaml:3: key 'gpus.0000:65:00.0.exlude': This key is not known here; the known",
        ),
        (
            'gpus:\n  "0000:65:00":\n    model: l4\n',
            r"gpus\.yaml:2: key 'gpus.0000:65:00': '0000:65:00' is not a PCI address",
        ),
        (
            'gpus:\n  "0000:65:00.0":\n    model: l5\n',
            r"gpus\.yaml:3: key 'gpus.0000:65:00.0.model': There is no GPU model 'l5'; the known",
        ),
        (
            'gpus:\n  "0000:65:00.0": {}\n  "65:00.0": {}\n',
            r"gpus\.yaml:3: key 'gpus.65:00.0': 0000:65:00.0 is listed twice",
        ),
        (
            'gpus:\n  "0000:65:00.0": {}\n  "00000000:65:00.0": {}\n',
            r"gpus\.yaml:3: key 'gpus.00000000:65:00.0': 0000:65:00.0 is listed twice",
        ),
        ("others: maybe\n", r"gpus\.yaml:1: key 'others': .*'take' or 'exclude'.*'maybe'"),
        ('gpus:\n  "0000:65:00.0": {exclude: ""}\n', r"gpus\.yaml:2: key 'gpus.0000:65:00.0.excl"),
        ("schema: 2\n", "reads 1"),
        ("gpus: [\n", "This is not YAML"),
    ):
        with pytest.raises(BadInputError, match=message):
            read(tmp_path, text)
    with pytest.raises(BadInputError, match="The file cannot be read"):
        read_inventory(tmp_path / "absent.yaml", MODELS)


def test_address_of_a_pci_function_that_is_not_a_gpu_raises_an_error(
    tmp_path: Path, host: FakeHost
) -> None:
    host.add_function("0000:03:00.0", group=9, class_code=NVME_CLASS, driver="nvme")
    inventory = read(tmp_path, 'gpus:\n  "0000:99:00.0": {}\n  "0000:03:00.0": {}\n')

    with pytest.raises(
        BadInputError,
        match=r"gpus\.yaml: key 'gpus.0000:03:00.0': 0000:03:00.0 .* is not a GPU; the GPUs of this host are "
        f"'{GPU}', '{SECOND}'",
    ):
        pool(host, inventory, tmp_path).survey()


def test_inventory_entry_for_a_missing_gpu_does_not_affect_other_gpus(
    tmp_path: Path, host: FakeHost
) -> None:
    for text in ("schema: 1\n", 'gpus:\n  "0000:99:00.0": {model: l4}\n'):
        inventory = read(tmp_path, text)

        assert set(verdicts(host, inventory, tmp_path).values()) == {VerdictKind.USABLE}
