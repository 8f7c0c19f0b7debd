"""Entry points of installed packages, and the errors for broken packages."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.cli import main
from harness.entry_points import Group, PluginError, find_plugin, plugins
from harness.errors import BadInputError, RequirementError
from harness.expect.every_node import (
    NODE_EXPECTATIONS,
    VerdictState,
    every_expectation,
    judge_node,
)
from harness.gpu.catalogue import load_catalogue
from harness.image.catalogue import load_catalogue as load_image_catalogue
from harness.lab.plugins import examine_plugins
from harness.lab.vm_drivers import open_driver
from harness.provisioner.choice import choose_provisioner
from harness.settings import PluginDriver, Settings, machine_driver
from suites.fakes.installed import Site
from suites.unit.evidence.folders import EvidenceFolder
from suites.unit.gpu.models import MODEL_FILE
from suites.unit.lab.drivers import StuckDriver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_RAISES = "raise RuntimeError('no licence\\nfound')"
_OWN = len(NODE_EXPECTATIONS)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with contextlib.closing(Site(tmp_path / "site", monkeypatch)) as site:
        yield site


def broken(site: Site, group: Group, name: str = "one") -> str:
    """Install a package that raises on import, and return the expected error message."""
    site.install("broken", {group: f"{name} = broken_plugin:thing"}, _RAISES)
    return (
        f"The entry point '{name}' (broken_plugin:thing) of the group '{group.value}' in 'broken 1.2' "
        "can't be used: it raises RuntimeError on import (no licence). Correct or uninstall that "
        "package."
    )


#: What an entry point gives as a folder, and what an error says of it.
_NO_FOLDERS = {
    "": "it raises AttributeError on import",
    "import sys; sys.exit('bye')": "it raises SystemExit on import (bye)",
    "raise RuntimeError": "it raises RuntimeError on import (RuntimeError())",
    "import absent": "it raises ModuleNotFoundError on import (No module named 'absent')",
    "thing = '.'": "absolute path of a folder is expected, but the entry point refers to '.'",
    "thing = '/absent/folder'": "of a folder is expected, but the entry point refers to '/abs",
    "thing = 5": "absolute path of a folder is expected, but the entry point refers to 5",
    "import os as thing": "of a folder is expected, but the entry point refers to <module 'os'",
}


def test_gpu_model_entry_point_without_a_folder_is_refused(site: Site) -> None:
    entries = (f"acme{n} = acme_plugin.part{n}:thing" for n in range(len(_NO_FOLDERS)))
    package = site.install("acme", {Group.GPU_MODELS: "\n".join(entries)})
    for number, code in enumerate(_NO_FOLDERS):
        (package / f"part{number}.py").write_text(code)

    for plugin, why in zip(plugins(Group.GPU_MODELS), _NO_FOLDERS.values(), strict=True):
        with pytest.raises(PluginError) as caught:
            plugin.folder()
        assert why in str(caught.value)


def test_entry_points_of_one_name_in_two_packages_are_refused(site: Site) -> None:
    site.install("acme", {Group.PROVISIONERS: "ours = acme_plugin:thing"})
    site.install("rival", {Group.PROVISIONERS: "ours = rival_plugin:thing"})

    with pytest.raises(
        PluginError, match=r"'acme 1\.2' .* another entry point of this name in 'rival 1\.2'"
    ):
        find_plugin(Group.PROVISIONERS, "ours")
    assert find_plugin(Group.PROVISIONERS, "theirs") is None


def test_models_of_a_package_are_in_the_catalogue(site: Site) -> None:
    package = site.install("acme", {Group.GPU_MODELS: "acme = acme_plugin"})
    (package / "acme-a1.yaml").write_text(MODEL_FILE.replace("vendor: 0x10de", "vendor: 0x1de5"))
    evidence = EvidenceFolder(site.folder).command(
        "lspci", "01:00.0 3D controller [0302]: Acme [1de5:1234]\n"
    )

    assert load_catalogue().get("acme-a1").pci.vendor == 0x1DE5
    with pytest.raises(AssertionError, match="No GPU was expected"):
        expect.no_gpu(evidence.evidence)


def test_broken_model_package_does_not_hide_other_gpu_models(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = broken(site, Group.GPU_MODELS)
    evidence = EvidenceFolder(site.folder).command("lspci", "").evidence

    catalogue = load_catalogue()
    assert catalogue.get("h100-sxm5-80gb").has_mig
    with pytest.raises(BadInputError) as caught:
        catalogue.get("acme-a1")
    assert str(caught.value).endswith(sentence)
    # Its GPUs would be taken for none.
    with pytest.raises(PluginError):
        expect.no_gpu(evidence)
    assert main(["gpu", "ls"]) == 0
    output = capsys.readouterr()
    assert "h100-sxm5-80gb" in output.out
    assert output.err == f"harness: {sentence}\n"


def test_invalid_model_of_each_package_is_reported_with_file_and_key(site: Site) -> None:
    seen = []
    for name in ("acme", "rival"):
        package = site.install(name, {Group.GPU_MODELS: f"{name} = {name}_plugin"})
        (package / f"{name}-a1.yaml").write_text(MODEL_FILE.replace("chip:", "chips:"))
        seen.append(f"in '{name} 1.2' can't be used: {package / f'{name}-a1.yaml'}:")
    for name in ("absent1", "absent2"):
        site.install(name, {Group.GPU_MODELS: f"{name} = {name}_plugin:absent"})

    errors = load_catalogue().errors

    assert len(errors) == 4
    for part in seen:
        (error,) = (each for each in errors if part in str(each))
        assert "key 'chips': This key is not known here" in str(error)


_EXPECTATIONS = '''
from harness.errors import ExpectationError, HarnessError
from harness.expect.every_node import NodeExpectation

def wrong(evidence):
    raise ExpectationError("Acme is wrong.")

def dark(evidence):
    raise HarnessError("Acme can't be seen.")

class Kind:
    pass

def agent_runs(evidence):
    """Acme's agent runs.

    It does so by a unit.
    """
    assert evidence.unit_states.get("acme.service") == "active", "the unit is not active"

def crashes(evidence):
    return evidence.no_such_attribute

def says_so(evidence):
    """Acme has an X."""
    return "Acme was seen."

ready = NodeExpectation(name="x", words="acme is ready", judge=says_so)
crashes_too = NodeExpectation(name="x", words="acme is ready", judge=crashes)
not_a_function = "agent_runs"
'''


def test_expectations_of_a_package_are_judged_with_the_other_expectations(site: Site) -> None:
    names = (
        "agent_runs",
        "crashes",
        "crashes_too",
        "says_so",
        "ready",
        "not_a_function",
        "Kind",
        "wrong",
        "dark",
    )
    entries = "\n".join(f"acme-{name} = acme_plugin:{name}" for name in names)
    site.install("acme", {Group.EXPECTATIONS: entries}, _EXPECTATIONS)
    folder = EvidenceFolder(site.folder)
    folder.command("units", "acme.service loaded active running Acme\n")

    verdicts = {
        verdict.expectation.name: (verdict.expectation.words, verdict.state, verdict.sentence)
        for verdict in judge_node(folder.evidence, every_expectation()[_OWN:])
    }

    assert verdicts["acme-agent_runs"] == (
        "Acme's agent runs",
        VerdictState.MET,
        "As expected: Acme's agent runs.",
    )
    assert verdicts["acme-says_so"] == ("Acme has an X", VerdictState.MET, "Acme was seen.")
    assert verdicts["acme-ready"] == ("acme is ready", VerdictState.MET, "Acme was seen.")
    for name in ("crashes", "crashes_too"):
        _, state, sentence = verdicts[f"acme-{name}"]
        assert state is VerdictState.UNKNOWN
        assert "in 'acme 1.2' can't be used: it raises AttributeError" in sentence
    for name in ("not_a_function", "Kind"):
        assert verdicts[f"acme-{name}"][1] is VerdictState.UNKNOWN
        assert "a function that takes evidence is expected" in verdicts[f"acme-{name}"][2]
    assert verdicts["acme-wrong"][1:] == (VerdictState.NOT_MET, "Acme is wrong.")
    assert verdicts["acme-dark"][1:] == (VerdictState.UNKNOWN, "Acme can't be seen.")

    folder.command("units", "acme.service loaded failed failed Acme\n")
    agent = next(each for each in every_expectation() if each.name == "acme-agent_runs")
    (verdict,) = judge_node(folder.evidence, [agent])
    assert verdict.state is VerdictState.NOT_MET
    assert verdict.sentence == (
        "The expectation 'Acme's agent runs' is not met: the unit is not active"
    )


def test_verdict_on_a_broken_expectation_is_unknown_and_other_expectations_are_judged(
    site: Site,
) -> None:
    sentence = broken(site, Group.EXPECTATIONS, "acme")
    verdicts = judge_node(EvidenceFolder(site.folder).evidence)

    assert len(verdicts) == _OWN + 1
    assert verdicts[-1].expectation.words == "of 'broken 1.2'"
    assert (verdicts[-1].state, verdicts[-1].sentence) == (VerdictState.UNKNOWN, sentence)


def test_expectation_of_a_package_cannot_take_a_name_of_the_harness(site: Site) -> None:
    for package in ("acme", "other"):
        entry = f"driver = {package}_plugin:says_so"
        site.install(package, {Group.EXPECTATIONS: entry}, _EXPECTATIONS)

    (verdict,) = judge_node(EvidenceFolder(site.folder).evidence, every_expectation()[_OWN:])

    assert verdict.state is VerdictState.UNKNOWN
    assert "the harness has a 'driver' itself" in verdict.sentence


_DRIVER = """
import contextlib
from suites.unit.lab.drivers import StuckDriver

@contextlib.contextmanager
def cloud(settings, report):
    report("a cloud")
    yield StuckDriver()

@contextlib.contextmanager
def nothing(settings, report):
    yield 5
"""


def test_driver_of_a_package_is_chosen_by_its_name(site: Site) -> None:
    site.install(
        "acme",
        {Group.MACHINE_DRIVERS: "acme = acme_plugin:cloud\nodd = acme_plugin:nothing"},
        _DRIVER,
    )
    said: list[str] = []
    chosen = machine_driver("acme", "")

    assert chosen == PluginDriver(name="acme")
    settings = Settings(cache=site.folder, machine_driver=chosen, machine_uri="acme://here")
    with open_driver(settings, said.append) as driver:
        assert isinstance(driver, StuckDriver)
    assert said == ["a cloud"]
    odd = Settings(cache=site.folder, machine_driver=PluginDriver(name="odd"))
    with (
        pytest.raises(PluginError, match="a VM driver is expected, but the function opens 5"),
        open_driver(odd, said.append),
    ):
        pass
    with pytest.raises(BadInputError, match=r"'xen' is not one of qemu, libvirt, node, acme, odd"):
        machine_driver("xen", "")


def test_broken_driver_breaks_only_runs_with_that_driver(site: Site) -> None:
    sentence = broken(site, Group.MACHINE_DRIVERS, "acme")

    assert machine_driver("qemu", "").value == "qemu"
    settings = Settings(cache=site.folder, machine_driver=machine_driver("acme", ""))
    with pytest.raises(PluginError) as caught, open_driver(settings, print):
        pass
    assert str(caught.value) == sentence
    assert not isinstance(caught.value, RequirementError), "would skip the tests"


def test_recipes_of_a_package_are_in_the_catalogue(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = broken(site, Group.IMAGES, "metal")
    package = site.install("acme", {Group.IMAGES: "acme = acme_plugin"})
    (package / "acme-node.yaml").write_text("schema: 1\nextends: debian-12\ndescription: Acme's\n")

    catalogue = load_image_catalogue()

    assert catalogue.read("acme-node").name == "acme-node"
    assert catalogue.read("debian-12").name == "debian-12"
    with pytest.raises(BadInputError) as caught:
        catalogue.read("metal-node")
    assert str(caught.value).endswith(sentence)
    assert main(["image", "ls"]) == 0
    output = capsys.readouterr()
    assert "acme-node" in output.out
    assert f"harness: {sentence}\n" in output.err


def test_doctor_reports_invalid_recipes_of_packages(site: Site) -> None:
    package = site.install("acme", {Group.IMAGES: "acme = acme_plugin\nempty = json"})
    (package / "acme-node.yaml").write_text("schema: 1\nextends: debian-12\ndescriptoin: Acme's\n")

    twice = site.install("twice", {Group.IMAGES: "twice = twice_plugin"})
    (twice / "debian-12.yaml").write_text("schema: 1\nextends: debian-13\ndescription: Mine\n")

    errors = {check.plugin.name: str(check.error) for check in examine_plugins()}

    assert "debian-12" in errors["twice"]
    assert f"{package / 'acme-node.yaml'}:3: key 'descriptoin'" in errors["acme"]
    assert ". Correct or uninstall" in errors["acme"]
    assert ".. Correct" not in errors["acme"]
    assert "there is no image recipe (*.yaml) in the folder" in errors["empty"]


_PROVISIONERS = """
from pathlib import Path
from harness.provisioner import Provisioner

value = Provisioner(name="x", run=["/opt/acme/run"])
def made():
    return value
def crashes():
    return value.no_such_attribute
file = Path(__file__).with_name("provisioner.yaml")
text = str(file)
odd = 5
"""


def test_provisioner_of_a_package_is_chosen_by_its_name(site: Site) -> None:
    names = ("value", "made", "crashes", "file", "text", "odd")
    entries = "\n".join(f"acme-{name} = acme_plugin:{name}" for name in names)
    package = site.install("acme", {Group.PROVISIONERS: entries}, _PROVISIONERS)
    (package / "provisioner.yaml").write_text("schema: 1\nname: y\nrun: [/opt/acme/run]\n")

    for name in ("acme-value", "acme-made", "acme-file", "acme-text"):
        provisioner = choose_provisioner(name)
        assert (provisioner.name, list(provisioner.run)) == (name, ["/opt/acme/run"])
    with pytest.raises(
        PluginError, match=r"'acme-odd' .* has to refer to a provisioner.* entry point leads to 5"
    ):
        choose_provisioner("acme-odd")
    with pytest.raises(PluginError, match=r"'acme-crashes' .* it raises AttributeError"):
        choose_provisioner("acme-crashes")
    with pytest.raises(BadInputError, match=r"only 'acme-crashes', 'acme-file', 'acme-made', '"):
        choose_provisioner("acme")

    (package / "provisioner.yaml").write_text("schema: 1\nname: y\nruns: [/opt/acme/run]\n")
    with pytest.raises(
        PluginError, match=r"provisioner\.yaml:3: key 'runs': This key is not known"
    ):
        choose_provisioner("acme-file")


def test_broken_provisioner_breaks_only_runs_with_that_provisioner(site: Site) -> None:
    sentence = broken(site, Group.PROVISIONERS, "acme")

    assert choose_provisioner(Settings().provisioner).name == Settings().provisioner
    with pytest.raises(PluginError) as caught:
        choose_provisioner("acme")
    assert str(caught.value) == sentence


def test_doctor_lists_every_entry_point(site: Site) -> None:
    sentence = broken(site, Group.MACHINE_DRIVERS, "metal")
    site.install(
        "acme",
        {
            Group.GPU_MODELS: "acme = acme_plugin",
            Group.EXPECTATIONS: "acme = acme_plugin:says_so\ndriver = acme_plugin:says_so",
            Group.PROVISIONERS: "gpu-node = acme_plugin:value\n"
            "good = acme_plugin:value\nodd = acme_plugin:odd",
            Group.MACHINE_DRIVERS: "qemu = acme_plugin:says_so",
        },
        _EXPECTATIONS + _PROVISIONERS,
    )

    checks = {(check.noun, check.plugin.name): check.error for check in examine_plugins()}

    assert checks["folder of GPU models", "acme"] is None
    assert checks["expectation", "acme"] is None
    assert checks["provisioner", "good"] is None
    assert "this entry point leads to 5" in str(checks["provisioner", "odd"])
    assert str(checks["VM driver", "metal"]) == sentence
    for noun, name in (
        ("expectation", "driver"),
        ("provisioner", "gpu-node"),
        ("VM driver", "qemu"),
    ):
        assert f"the harness has a '{name}' itself" in str(checks[noun, name])
