"""What a run was asked to do."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.settings import Settings, accepted_licences, first_of, is_ci

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("value", ["true", "1", "yes", "TRUE", "on"])
def test_ci_is_strict(value: str) -> None:
    assert is_ci({"CI": value})


@pytest.mark.parametrize(
    "environment", [{}, {"CI": ""}, {"CI": "0"}, {"CI": "False"}, {"CI": "no"}]
)
def test_a_laptop_is_not(environment: dict[str, str]) -> None:
    assert not is_ci(environment)


def test_unknown_evidence_choice_names_the_known_ones() -> None:
    with pytest.raises(BadInputError, match=r"--evidence: 'never' is none of on-failure, always"):
        Settings(evidence="never")


def test_several_images_are_told_apart_by_commas() -> None:
    assert Settings().images == ("debian-12",)
    assert Settings(image="debian-12,debian-13").images == ("debian-12", "debian-13")


@pytest.mark.parametrize("value", ["", "debian-12,", "debian-12,debian-12"])
def test_list_of_images_with_a_gap_or_a_repetition_is_refused(value: str) -> None:
    with pytest.raises(BadInputError, match=f"--image: '{value}' is no list of images"):
        Settings(image=value)


def test_limit_below_nothing_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"--checkpoint-limit-mib: -1 is too little"):
        Settings(checkpoint_limit_mib=-1)


def test_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "my cache, 100%"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))

    settings = Settings()

    assert settings.cache == cache / "gpu-node-harness"
    assert settings.runs_folder.parent == settings.image_store.parent == settings.cache
    assert settings.checkpoint_store.parent == settings.cache


def test_relative_cache_is_never_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU runs in the machine's folder, from where a relative path leads elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")

    assert Settings().cache.is_absolute()


def test_licences_are_accepted_by_option_and_environment() -> None:
    environment = {"HARNESS_ACCEPT_LICENCE": "one, two"}

    assert accepted_licences(["three", "four,one"], environment) == {"one", "two", "three", "four"}


def test_no_licence_is_accepted_by_itself() -> None:
    assert accepted_licences([], {}) == frozenset()
    assert Settings().accepted_licences == frozenset()


def test_driver_is_told_by_option_environment_and_ini_in_this_order() -> None:
    environment = {"HARNESS_MACHINE_DRIVER": "libvirt"}

    assert first_of("node", "HARNESS_MACHINE_DRIVER", "qemu", environment) == "node"
    assert first_of(None, "HARNESS_MACHINE_DRIVER", "qemu", environment) == "libvirt"
    assert first_of(None, "HARNESS_MACHINE_DRIVER", "qemu", {}) == "qemu"
    assert first_of(None, "HARNESS_MACHINE_DRIVER", "", {}) is None


def test_unknown_driver_is_refused_with_those_that_are() -> None:
    with pytest.raises(BadInputError, match="'xen' is none of qemu, libvirt, node"):
        Settings(machine_driver="xen")


def test_uri_without_a_driver_that_takes_one_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"'qemu:///system'.*--machine-driver=libvirt"):
        Settings(machine_uri="qemu:///system")


def test_folder_of_another_host_is_given_whole() -> None:
    with pytest.raises(BadInputError, match=r"--machine-storage: 'images' is a folder of another"):
        Settings(machine_storage=PurePosixPath("images"))
