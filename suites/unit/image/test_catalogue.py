"""Recipes: what is read, what is refused, and what a key depends on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.image.build import input_entries
from harness.image.catalogue import load_catalogue, read_recipe
from suites.unit.image.cataloguefolder import LICENSED, RECIPE, a_recipe, write_catalogue

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[3]


def test_own_catalogue_is_sound() -> None:
    recipe = load_catalogue(REPOSITORY / "images").get("debian-12")

    assert recipe.file.driver is not None
    assert recipe.file.driver.reference == (
        "mcr.microsoft.com/aks/aks-gpu-cuda-lts:580.126.09-20260801000000"
    )


def test_unknown_image_names_the_known_ones(tmp_path: Path) -> None:
    write_catalogue(tmp_path)

    with pytest.raises(BadInputError) as refusal:
        load_catalogue(tmp_path).get("nose")

    assert str(refusal.value) == (
        f"{tmp_path}: There is no image called 'nose'; known are 'node'."
    )


def test_empty_catalogue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"No image recipe \(\*\.yaml\) was found"):
        load_catalogue(tmp_path)


@dataclass(frozen=True, kw_only=True)
class Slip:
    """A recipe in which `said` was mistyped as `instead`, and how the refusal tells it."""

    said: str
    instead: str
    line: int
    key: str
    message: str


SLIPS = [
    Slip(
        said="packages:",
        instead="packges:",
        line=11,
        key="packges",
        message="known are 'schema', 'kind', 'description', 'release', 'archives', 'kernels', ",
    ),
    Slip(
        said="  newest: 2",
        instead="  oldest: 2",
        line=10,
        key="kernels.oldest",
        message="This key is not known here; known are 'pattern', 'newest'.",
    ),
    Slip(
        said="    suites: [bookworm, bookworm-updates]",
        instead="    suites: []",
        line=7,
        key="archives.0.suites",
        message="at least 1 item",
    ),
    Slip(
        said="  sha:",
        instead="  digest:",
        line=18,
        key="driver.digest",
        message="known are 'repository', 'version', 'sha'.",
    ),
    Slip(
        said="580.126.09",
        instead="580; reboot",
        line=17,
        key="driver.version",
        message="'580; reboot'",
    ),
    Slip(
        said="kind: build",
        instead="kind: bake",
        line=2,
        key="kind",
        message="'build', but the file says 'bake'.",
    ),
    Slip(
        said="node/root",
        instead="nod/root",
        line=13,
        key="trees.0",
        message="There is no folder 'nod/root' in",
    ),
    Slip(said="node/root", instead="../root", line=13, key="trees.0", message="stays below it"),
    Slip(
        said="setup.sh",
        instead="set-up.sh",
        line=14,
        key="scripts.0",
        message="There is no file 'node/scripts/set-up.sh' in",
    ),
    Slip(
        said="[0-9]+",
        instead="[0-9",
        line=9,
        key="kernels.pattern",
        message="This is not a regular expression",
    ),
]


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.instead.strip())
def test_slip_names_file_line_and_key(tmp_path: Path, slip: Slip) -> None:
    assert slip.said in RECIPE
    file = write_catalogue(tmp_path, recipe=RECIPE.replace(slip.said, slip.instead))

    with pytest.raises(BadInputError) as refusal:
        read_recipe(file)

    assert str(refusal.value).startswith(f"{file}:{slip.line}: key '{slip.key}':")
    assert slip.message in str(refusal.value)


def test_file_name_that_cannot_name_an_image_is_refused(tmp_path: Path) -> None:
    file = write_catalogue(tmp_path, name="My Node")

    with pytest.raises(BadInputError, match="'My Node' cannot name an image"):
        read_recipe(file)


def test_key_stays_where_only_the_recipes_comments_and_order_change(tmp_path: Path) -> None:
    key = a_recipe(tmp_path).key(builder="one")

    reordered = RECIPE.replace("release: bookworm\n", "") + "# late\nrelease: bookworm\n"
    assert a_recipe(tmp_path, recipe=reordered).key(builder="one") == key


def test_key_does_not_depend_on_where_the_catalogue_lies(tmp_path: Path) -> None:
    here, there = a_recipe(tmp_path / "here"), a_recipe(tmp_path / "there")

    assert here.key(builder="one") == there.key(builder="one")


def _edit(path: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / path).write_text("changed\n")

    return edit


def _add_file(folder: Path) -> None:
    (folder / "node/root/etc/motd").write_text("welcome\n")


def _make_executable(folder: Path) -> None:
    (folder / "node/root/etc/fstab").chmod(0o755)


def _point_elsewhere(folder: Path) -> None:
    (folder / "node/root/etc/fstab").unlink()
    (folder / "node/root/etc/fstab").symlink_to("mtab")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_edit("node/root/etc/fstab"), id="tree"),
        pytest.param(_edit("node/scripts/setup.sh"), id="script"),
        pytest.param(_edit("node/scripts/beside.txt"), id="file-beside-script"),
        pytest.param(_add_file, id="new-file"),
        pytest.param(_make_executable, id="mode"),
        pytest.param(_point_elsewhere, id="link"),
    ],
)
def test_key_changes_with_every_input(tmp_path: Path, change: Callable[[Path], None]) -> None:
    recipe = a_recipe(tmp_path)
    before = recipe.key(builder="one")

    change(tmp_path)

    assert recipe.key(builder="one") != before


def test_key_changes_with_recipe_and_builder(tmp_path: Path) -> None:
    recipe = a_recipe(tmp_path)
    other = a_recipe(tmp_path, recipe=RECIPE.replace("containerd", "cri-o"))

    keys = {recipe.key(builder="one"), recipe.key(builder="two"), other.key(builder="one")}
    assert len(keys) == 3


def test_unit_of_the_guest_agent_is_wanted_by_its_port() -> None:
    """Systemd starts it by a link whose name holds a backslash, so it must survive as it is."""
    recipe = load_catalogue(REPOSITORY / "images").get("debian-12")
    entries = {entry.path: entry for entry in input_entries(recipe)}
    units = "etc/systemd/system"

    wants = entries[
        f"{units}/dev-virtio\\x2dports-harness.agent.device.wants/harness-agent.service"
    ]
    assert wants.link == "../harness-agent.service"
    assert f"{units}/harness-agent.service" in entries
    assert entries["usr/lib/harness/agent-loader"].mode == 0o755


def test_licence_does_not_change_the_key(tmp_path: Path) -> None:
    """It says on which terms an image may be used, and nothing of what is in it."""
    free, licensed = a_recipe(tmp_path), a_recipe(tmp_path, recipe=LICENSED)

    assert licensed.key(builder="b") == free.key(builder="b")


def test_own_image_of_nvidias_driver_needs_its_licence() -> None:
    recipe = load_catalogue(REPOSITORY / "images").get("debian-12-nvidia")

    assert recipe.file.licence is not None
    assert recipe.file.licence.id == "nvidia-debian-non-free"
