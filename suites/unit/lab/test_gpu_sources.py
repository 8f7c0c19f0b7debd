"""Where the GPUs of a machine come from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.gpu import HostGpuAttachment
from harness.gpu.catalogue import find_model
from harness.gpu.gsp.device import GspDevice
from harness.gpu.gsp.layouts import SHIPPED
from harness.gpu.passthrough import GpuChoice
from harness.gpu.passthrough.inventory import Inventory
from harness.gpu.script import GpuScript
from harness.gpu.trace import IncidentKind
from harness.lab import gpu_sources
from harness.lab.gpu_sources import open_gpu_pool
from harness.lab.machine_gpus import MachineGpus
from harness.settings import GpuEmulation, GpuSource, Settings
from suites.unit.gpu.gsp.drivers import Driver
from suites.unit.gpu.models import MODEL_FILE, a_model
from suites.unit.lab.builders import a_lab_machine, machine_services
from suites.unit.lab.fake_pool import ADDRESS, ANY, FakePool, named, sources

if TYPE_CHECKING:
    from pathlib import Path

    from harness.gpu import GpuModel

BY_ADDRESS = GpuChoice(address=ADDRESS)


def test_gpu_source_decides_which_gpus_are_emulated() -> None:
    """A GPU that is requested by its address is always a GPU of the host."""
    rows: list[tuple[GpuSource, tuple[str, ...], list[object]]] = [
        (GpuSource.EMULATED, (ADDRESS,), ["model", "any", BY_ADDRESS]),
        (GpuSource.HOST, (), ["choice of model", ANY, BY_ADDRESS]),
        (GpuSource.AUTO, ("a", "b", "c"), ["choice of model", ANY, BY_ADDRESS]),
        (GpuSource.AUTO, ("a", "b"), ["model", "any", BY_ADDRESS]),
    ]
    model = named("model")
    meanings: dict[object, object] = {
        "model": model,
        "any": named("any"),
        "choice of model": GpuChoice(model=model),
    }
    for source, addresses, expected in rows:
        resolved = sources(source, *addresses)[0].resolve([model, ANY, BY_ADDRESS])

        assert resolved == [
            meanings[each] if isinstance(each, str) else each for each in expected
        ], source
    emulated, _ = sources(GpuSource.EMULATED)
    assert emulated.resolve([GpuChoice(model=model)]) == [model]


def test_emulation_setting_of_the_run_overrides_the_emulation_of_each_gpu() -> None:
    for emulation in (None, *GpuEmulation):
        made = replace(sources(GpuSource.EMULATED)[0], emulation=emulation)
        facts = find_model("h100-sxm5-80gb").gsp
        model = replace(named("model"), gsp=facts)
        models = [model, model.emulated_as(GpuEmulation.GSP)]

        resolved = made.resolve(models)

        expected = (
            [GpuEmulation.IDENTITY, GpuEmulation.GSP] if emulation is None else [emulation] * 2
        )
        assert [cast("GpuModel", each).emulation for each in resolved] == expected, emulation


def test_gsp_emulation_is_not_used_for_a_gpu_model_without_gsp() -> None:
    made = replace(sources(GpuSource.EMULATED)[0], emulation=GpuEmulation.GSP)

    (resolved,) = made.resolve([find_model("v100-pcie-16gb")])

    assert cast("GpuModel", resolved).emulation is GpuEmulation.IDENTITY


def test_empty_gpu_request_resolves_to_no_gpus_for_each_gpu_source() -> None:
    """The pool refuses an empty request."""
    assert [sources(each, ADDRESS)[0].resolve([]) for each in GpuSource] == [[]] * len(GpuSource)


def test_requested_gpus_of_the_host_are_passed_to_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, fake = sources(GpuSource.AUTO, ADDRESS)
    asked: list[GpuChoice] = []
    monkeypatch.setattr(fake, "require", asked.extend)
    model = named("model")

    made.resolve([model, BY_ADDRESS])

    assert asked == [GpuChoice(model=model), BY_ADDRESS]


def machine_gpus(
    folder: Path, source: GpuSource, *addresses: str, scripts: dict[str, GpuScript] | None = None
) -> tuple[MachineGpus, FakePool]:
    made, fake = sources(source, *addresses)
    gpus = MachineGpus(
        a_lab_machine(folder, slots=4).spec,
        folder,
        transport=machine_services(folder).transport,
        sources=made,
        scripts=scripts or {},
    )
    return gpus, fake


def test_killed_machine_does_not_wait_for_a_gpu(tmp_path: Path) -> None:
    gpus, pool = machine_gpus(tmp_path, GpuSource.HOST, "0000:65:00.0")

    with pytest.raises(HarnessError, match="it was killed"):
        gpus.provide([ANY], report=lambda _: None, cancelled=lambda: "it was killed")

    assert pool.holders == []


def test_gpus_of_the_host_are_leased_together_and_returned_when_the_last_is_unplugged(
    tmp_path: Path,
) -> None:
    gpus, pool = machine_gpus(tmp_path, GpuSource.HOST, "0000:65:00.0", "0000:66:00.0")
    said: list[str] = []

    first, second = gpus.provide([ANY, a_model()], report=said.append)

    assert isinstance(first.attachment, HostGpuAttachment)
    assert (first.device_id, first.pci) == ("gpu0", "10de:2330")
    assert (first.title, gpus.emulated) == ("host 0000:65:00.0", ())
    bars = {index: (bar.mib, bar.bits) for index, bar in first.bars.items()}
    assert bars == {0: (16, 32), 2: (128 << 10, 64)}
    assert first.attachment.addresses == ("0000:65:00.0", "0000:65:00.1")
    windows = (first.attachment.root_port_window_mib, first.attachment.aperture_mib)
    assert windows == (128, 256 << 10), "The windows hold the BARs of both functions."
    assert (second.device_id, gpus.plugged) == ("gpu1", ("gpu0", "gpu1"))
    assert (said, len(pool.holders)) == (["waiting"], 1)
    gpus.withdraw("gpu0")
    assert len(pool.held) == 2
    gpus.withdraw("gpu1")
    assert (pool.held, gpus.plugged) == ([], ())


def test_host_and_emulated_gpus_of_one_machine_have_distinct_device_ids(
    tmp_path: Path,
) -> None:
    second = GpuChoice(address="0000:66:00.0")
    gpus, pool = machine_gpus(tmp_path, GpuSource.EMULATED, ADDRESS, "0000:66:00.0")

    emulated, host = gpus.provide([a_model(), BY_ADDRESS], report=lambda _: None)

    assert (emulated.device_id, host.device_id) == ("gpu0", "gpu1")
    assert isinstance(host.attachment, HostGpuAttachment)
    assert gpus.gpu("gpu0") is not None
    with pytest.raises(
        RequirementError, match=r"'gpu1'.*belongs to the host.*--gpu-source=emulated"
    ):
        gpus.gpu("gpu1")
    gpus.provide([second], report=lambda _: None)
    assert len(pool.held) == 2
    gpus.close()
    assert (len(pool.holders), pool.held) == (2, [])


def test_fault_script_for_a_host_gpu_is_refused_and_no_gpu_stays_leased(tmp_path: Path) -> None:
    gpus, pool = machine_gpus(
        tmp_path, GpuSource.HOST, ADDRESS, scripts={"gpu0": GpuScript(is_dead=True)}
    )

    with pytest.raises(RequirementError, match=r"'gpu0'.*only emulated GPUs.*emulated"):
        gpus.provide([ANY], report=lambda _: None)

    assert (pool.held, gpus.plugged) == ([], ())


def an_inventory(file: Path, model: str) -> Path:
    file.write_text(f"schema: 1\ngpus:\n  '{ADDRESS}': {{model: {model}}}\n")
    return file


def test_inventory_from_the_settings_overrides_the_optional_inventory_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_sources, "INVENTORY", tmp_path / "host.yaml")
    settings = Settings(cache=tmp_path)
    assert gpu_sources.inventory_of(settings, None) == Inventory()

    an_inventory(tmp_path / "host.yaml", "t4-16gb")
    assert gpu_sources.inventory_of(settings, None).model_of(ADDRESS) == "t4-16gb"

    own = an_inventory(tmp_path / "own.yaml", "h100-sxm5-80gb")
    assert (
        gpu_sources.inventory_of(replace(settings, gpu_inventory=own), None).model_of(ADDRESS)
        == "h100-sxm5-80gb"
    )


def test_inventory_with_a_model_that_the_run_does_not_know_is_refused(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/mine.yaml").write_text(MODEL_FILE)
    settings = Settings(gpu_inventory=an_inventory(tmp_path / "gpus.yaml", "mine"))

    open_gpu_pool(replace(settings, gpu_models=(tmp_path / "models",)))
    with pytest.raises(BadInputError, match=r"gpus\.yaml.*mine"):
        open_gpu_pool(settings)


# -- emulated GPUs ----------------------------------------------------------------------------------


def test_provided_gpu_has_the_pci_id_and_the_title_and_the_bars_of_its_model(
    tmp_path: Path,
) -> None:
    gpus, _ = machine_gpus(tmp_path, GpuSource.EMULATED)

    (one,) = gpus.provide([a_model()], report=lambda _: None)

    assert (one.pci, one.title, gpus.emulated) == ("10de:2330", "h100", ("gpu0",))
    assert one.attachment.id == "gpu0"
    assert set(one.bars) == set(gpus.gpu("gpu0").bars)
    assert gpus.provided == (one,)
    gpus.close()


def test_emulated_gpu_accepts_a_driver_release_with_data_in_a_user_model_folder(
    tmp_path: Path,
) -> None:
    text = (SHIPPED / "550.163.01.json").read_text().replace("550.163.01", "999.12.34", 1)
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases/999.12.34.json").write_text(text)
    made, _ = sources(GpuSource.EMULATED)
    gpus = MachineGpus(
        a_lab_machine(tmp_path).spec,
        tmp_path,
        transport=machine_services(tmp_path).transport,
        sources=replace(made, model_folders=(tmp_path,)),
        scripts={},
    )
    gpu = gpus.serve(find_model("t4-16gb").emulated_as(GpuEmulation.GSP)).gpu
    gpus.close()
    assert isinstance(gpu.engine, GspDevice)

    Driver(gpu.engine, "999.12.34").open()

    assert gpu.trace.incidents_of(IncidentKind.DRIVER_REFUSED) == ()
    assert gpu.engine.state.layouts is not None


def test_only_traces_of_the_most_recently_unplugged_gpus_are_kept(tmp_path: Path) -> None:
    gpus, _ = machine_gpus(tmp_path, GpuSource.EMULATED)
    for _ in range(18):
        (one,) = gpus.provide([a_model()], report=lambda _: None)
        gpus.withdraw(one.device_id)

    gpus.provide([a_model()], report=lambda _: None)

    assert list(gpus.traces()) == [f"gpu{number}" for number in range(2, 19)]
    with pytest.raises(HarnessError, match="no GPU 'gpu1'"):
        gpus.gpu("gpu1")
    assert gpus.gpu("gpu2") is not None
    gpus.close()


def test_stall_report_covers_every_gpu_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus, _ = machine_gpus(tmp_path, GpuSource.EMULATED)
    servers = [gpus.serve(a_model()) for _ in range(2)]
    asked: list[float] = []

    def report(patience_s: float) -> str | None:
        asked.append(patience_s)
        return "blocked on gpu1"

    assert gpus.stall_report(5.0) is None
    monkeypatch.setattr(servers[1], "stall_report", report)
    assert gpus.stall_report(5.0) == "blocked on gpu1"
    assert asked == [5.0]
    gpus.close()
