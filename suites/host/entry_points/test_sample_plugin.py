"""A third party's package adds models, recipes and more to the wheel; a broken package is harmless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from suites.host.entry_points.conftest import PluginSite

_EVIDENCE = """\
import json
from pathlib import Path

from harness.api import Evidence
from harness.expect.every_node import judge_node, node_expectations


def judged(tmp_path, firmware):
    file = tmp_path / "files/proc/acme/firmware"
    file.parent.mkdir(parents=True)
    file.write_text(firmware)
    chosen = node_expectations(["acme-firmware"], source="a test")
    (verdict,) = judge_node(Evidence(tmp_path), chosen)
    return verdict.state.value, verdict.sentence.split(".")[0]


def test_met(tmp_path):
    assert judged(tmp_path, "7\\n") == ("met", "Acme's GPUs have firmware 7")


def test_not_met(tmp_path):
    state, sentence = judged(tmp_path, "6\\n")
    assert state == "not met"
    assert sentence.startswith("Firmware 7 was expected")


def test_model(gpu_catalogue, tmp_path):
    from harness import expect

    lspci = tmp_path / "commands/lspci"
    lspci.parent.mkdir()
    lspci.write_text("01:00.0 Processing accelerators [1200]: Acme A1 [1de5:0007]\\n")
    lspci.with_name("lspci.exit-code").write_text("0\\n")
    expect.gpus_on_bus(Evidence(tmp_path), gpu_catalogue.get("acme-a1"))
    expect.has_gpus(Evidence(tmp_path))
"""


def sentence(group: str, *, name: str = "broken") -> str:
    return (
        f"The entry point '{name}' (broken_gpus:thing) of the group 'gpu_node_harness.{group}' in "
        "'broken-gpus 0.1' can't be used: it raises RuntimeError on import (no licence). Correct or "
        "uninstall that package."
    )


def test_models_and_recipes_of_the_package_are_listed(
    sample_site: PluginSite, tmp_path: Path
) -> None:
    gpus = sample_site.harness("gpu", "ls", "--json", cwd=tmp_path).check("harness gpu ls")
    images = sample_site.harness("image", "ls", "--json", cwd=tmp_path).check("harness image ls")

    models = {model["name"]: model for model in json.loads(gpus.stdout)["models"]}
    assert (models["acme-a1"]["vendor"], models["acme-a1"]["device"]) == ("1de5", "0007")
    assert "h100-sxm5-80gb" in models
    recipes = {image["name"]: image["description"] for image in json.loads(images.stdout)}
    assert recipes["acme-node"] == "Debian 12 with Acme's tools"
    assert (gpus.stderr, images.stderr) == ("", "")


def test_project_uses_the_expectation_and_the_gpu_model_of_the_package(
    sample_site: PluginSite, tmp_path: Path
) -> None:
    (tmp_path / "test_acme.py").write_text(_EVIDENCE)

    result = sample_site.pytest("-q", cwd=tmp_path).check("pytest")

    assert "3 passed" in result.stdout


def test_judge_command_applies_the_expectation_of_the_package(
    sample_site: PluginSite, tmp_path: Path
) -> None:
    result = sample_site.harness(
        "node", "judge", "local:", "--only", "acme-firmware", "--json", cwd=tmp_path
    )

    (verdict,) = json.loads(result.stdout)["verdicts"]
    assert verdict["expectation"] == "Acme's GPUs have current firmware"
    assert (result.exit_code, verdict["verdict"]) == (1, "not met")
    assert "Firmware 7 was expected on Acme's GPUs" in verdict["sentence"]
    evidence = Path(json.loads(result.stdout)["evidence"])
    assert (evidence / "commands/acme-uptime.exit-code").read_text() == "0\n"


@pytest.mark.parametrize("option", ["--provisioner=acme", "--machine-driver=acme-cloud"])
def test_option_selects_a_provisioner_or_vm_driver_of_the_package_by_name(
    sample_site: PluginSite, tmp_path: Path, option: str
) -> None:
    (tmp_path / "test_one.py").write_text("def test_one(settings): assert settings.images\n")

    known = sample_site.pytest("-q", option, cwd=tmp_path)
    unknown = sample_site.pytest("-q", f"{option}s", cwd=tmp_path)

    assert "1 passed" in known.check("pytest").stdout
    assert unknown.exit_code == 4
    assert f"'{option.partition('=')[2]}s'" in unknown.stderr


def test_broken_package_harms_no_other_package_and_no_test(
    broken_site: PluginSite, tmp_path: Path
) -> None:
    (tmp_path / "test_one.py").write_text(
        "def test_one(h100): assert h100.name == 'h100-sxm5-80gb'\n"
        "def test_acme(gpu_catalogue): assert gpu_catalogue.get('acme-a1')\n"
    )

    gpus = broken_site.harness("gpu", "ls", cwd=tmp_path).check("harness gpu ls")
    tests = broken_site.pytest("-q", cwd=tmp_path).check("pytest")
    chosen = broken_site.pytest("-q", "--provisioner=broken", cwd=tmp_path)

    assert "acme-a1" in gpus.stdout
    assert gpus.stderr == f"harness: {sentence('gpu_models')}\n"
    assert "2 passed" in tests.stdout
    assert chosen.exit_code == 4
    assert sentence("provisioners") in chosen.stderr


def test_doctor_shows_every_entry_point(broken_site: PluginSite, tmp_path: Path) -> None:
    result = broken_site.harness("doctor", "--json", cwd=tmp_path)

    checks = [each for each in json.loads(result.stdout) if each["requirement"] == "plug-in"]
    assert result.exit_code == 2
    broken = {each["found"] for each in checks if not each["is_met"]}
    groups = ("gpu_models", "images", "provisioners", "machine_drivers", "expectations")
    assert broken == {sentence(group) for group in groups}
    sound = [each["found"] for each in checks if each["is_met"]]
    assert len(sound) == 5
    assert "'acme-firmware' of 'acme-gpus 1.2' (expectation)." in sound
