"""Recipes that extend other recipes: merged values, refused recipes, and the lines of errors."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.image.build.commands import input_entries
from harness.image.catalogue import Recipe, load_catalogue, read_recipe
from harness.image.cloud.source import CloudImageRecipe
from harness.settings import SHIPPED_IMAGES
from suites.unit.image.cataloguefolder import a_recipe, write_catalogue
from suites.unit.image.cloud_image_folder import write_cloud_image_recipe

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """Return a folder with the recipe 'node', its tree and its script."""
    write_catalogue(tmp_path / "shipped")
    return tmp_path / "shipped"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    return folder


def _read(shipped: Path, own: Path, text: str, name: str = "ours") -> Recipe:
    (own / f"{name}.yaml").write_text(text)
    recipe = load_catalogue(shipped, own).read(name)
    assert isinstance(recipe, Recipe)
    return recipe


def test_extending_recipe_inherits_missing_values(shipped: Path, own: Path) -> None:
    recipe = _read(shipped, own, "schema: 1\nextends: node\ndescription: Ours\n")

    base = read_recipe(shipped / "node.yaml")
    assert isinstance(base, Recipe)
    assert recipe.file.description == "Ours"
    assert (recipe.file.archives, recipe.file.driver) == (base.file.archives, base.file.driver)
    assert recipe.tree_files() == base.tree_files()


def test_lists_are_appended_and_mappings_are_merged_and_other_values_are_replaced(
    shipped: Path, own: Path
) -> None:
    recipe = _read(
        shipped,
        own,
        "schema: 1\nextends: node\npackages: [jq]\nkernels: {newest: 3}\nrelease: trixie\n",
    )

    assert recipe.file.packages == ("systemd", "containerd", "jq")
    assert recipe.file.kernels.newest == 3
    assert recipe.file.kernels.pattern.startswith("linux-image-6")
    assert recipe.file.release == "trixie"


def test_extending_recipe_can_replace_lists_and_remove_values_with_null(
    shipped: Path, own: Path
) -> None:
    recipe = _read(
        shipped,
        own,
        "schema: 1\nextends: node\nreplace: [archives, scripts]\nscripts: []\ndriver: null\n"
        "archives: [{url: 'https://example.org/debian', suites: [sid]}]\npackages: [jq]\n",
    )

    assert [archive.suites for archive in recipe.file.archives] == [("sid",)]
    assert recipe.file.scripts == ()
    assert recipe.file.driver is None
    assert recipe.file.packages == ("systemd", "containerd", "jq")


def test_trees_and_scripts_are_found_beside_the_recipe_that_lists_them(
    shipped: Path, own: Path
) -> None:
    """The same path in both recipes means two folders; files of the later tree replace earlier files."""
    (own / "node/root/etc").mkdir(parents=True)
    (own / "node/root/etc/fstab").write_text("ours\n")
    (own / "tools").mkdir()
    (own / "tools/last.sh").write_text("true\n")
    recipe = _read(
        shipped, own, "schema: 1\nextends: node\ntrees: [node/root]\nscripts: [tools/last.sh]\n"
    )

    assert recipe.tree_files()["etc/fstab"] == own / "node/root/etc/fstab"
    assert recipe.tree_files()["usr/bin/tool"] == shipped / "node/root/usr/bin/tool"
    assert recipe.script_files()["node/scripts/setup.sh"] == shipped / "node/scripts/setup.sh"
    assert recipe.script_files()["tools/last.sh"] == own / "tools/last.sh"
    assert {"etc/fstab", "usr/src/image-build/tools/last.sh"} <= {
        entry.path for entry in input_entries(recipe)
    }


def test_two_scripts_whose_files_would_have_the_same_path_are_refused(
    shipped: Path, own: Path
) -> None:
    (own / "node/scripts").mkdir(parents=True)
    (own / "node/scripts/setup.sh").write_text("true\n")

    with pytest.raises(BadInputError, match="have the same path below the folders") as refusal:
        _read(shipped, own, "schema: 1\nextends: node\nscripts: [node/scripts/setup.sh]\n")

    assert (refusal.value.source, refusal.value.key) == (str(shipped / "node.yaml"), "scripts.0")


def test_base_recipe_can_be_named_by_a_path_and_can_extend_another_recipe(
    shipped: Path, own: Path
) -> None:
    (own / "middle.yaml").write_text(
        "schema: 1\nextends: ../shipped/node.yaml\npackages: [jq]\ndisk_gib: 20\n"
    )

    recipe = _read(shipped, own, "schema: 1\nextends: middle\npackages: [htop]\n")

    assert recipe.file.packages == ("systemd", "containerd", "jq", "htop")
    assert recipe.file.disk_gib == 20


def test_key_of_an_extending_recipe_depends_on_its_merged_content(tmp_path: Path) -> None:
    """A recipe that contains all values itself makes the same image, so it has the same key."""
    write_catalogue(tmp_path / "shipped")
    (tmp_path / "own").mkdir()
    extending = _read(
        tmp_path / "shipped",
        tmp_path / "own",
        "schema: 1\nextends: ../shipped/node.yaml\n",
        "same",
    )
    other = a_recipe(tmp_path / "other")
    shutil.move(tmp_path / "other/node.yaml", tmp_path / "other/same.yaml")
    complete = read_recipe(tmp_path / "other/same.yaml")

    assert isinstance(complete, Recipe)
    assert extending.key(builder="one") == complete.key(builder="one") != other.key(builder="one")


def test_recipe_that_extends_a_cloud_image_has_its_own_folder_and_the_signing_key_of_the_base(
    tmp_path: Path, own: Path
) -> None:
    digest = f"sha256:{'0' * 64}"
    write_cloud_image_recipe(tmp_path / "shipped", folder="https://example.org/")
    (own / "pinned.yaml").write_text(f"schema: 1\nextends: tiny\ndigest: {digest}\n")

    recipe = load_catalogue(tmp_path / "shipped", own).read("pinned")

    assert isinstance(recipe, CloudImageRecipe)
    assert str(recipe.pinned) == digest
    assert recipe.key_file == tmp_path / "shipped/keys/publisher.asc"
    assert recipe.folder == own


def test_error_for_an_invalid_extending_recipe_has_its_line_and_key(
    shipped: Path, own: Path
) -> None:
    for text, where, words in (
        (
            "schema: 1\nextends: nod\n",
            "2: key 'extends':",
            "no recipe 'nod'; the known recipes are .*'node', 'ours'\\. To extend",
        ),
        (
            "schema: 1\nextends: ./node.yaml\n",
            "2: key 'extends':",
            "There is no file '.*own/node.yaml'",
        ),
        ("schema: 1\nextends: ours\n", "2: key 'extends':", "extends itself: 'ours' -> 'ours'"),
        ("extends: node\n", "1: key 'schema':", "missing; write 'schema: 1'"),
        ("schema: 1\nextends: node\nkind: url\n", "3: key 'kind':", "'node' is of kind 'build'"),
        ("schema: 1\nextends: node\nreplace: [trees]\n", "3: key 'replace.0':", "no list 'trees'"),
        (
            "schema: 1\nextends: node\nreplace: [release]\nrelease: sid\n",
            "3: key 'replace.0':",
            "no list 'release'",
        ),
        (
            "schema: 1\nreplace: [trees]\n",
            "2: key 'replace':",
            "This key is allowed only in a recipe that has 'extends'",
        ),
        (
            "schema: 1\nextends: node\npackges: [jq]\n",
            "3: key 'packges':",
            "known keys are 'schema'",
        ),
        ("schema: 1\nextends: node\npackages:\n- jq\n- 7\n", "5: key 'packages.1':", "has 7"),
        (
            "schema: 1\nextends: node\ntrees: [tree]\n",
            "3: key 'trees.0':",
            "no folder 'tree' in '.*/own'",
        ),
    ):
        with pytest.raises(BadInputError, match=words) as refusal:
            _read(shipped, own, text)

        assert str(refusal.value).startswith(f"{own / 'ours.yaml'}:{where} ")


def test_error_for_an_invalid_base_recipe_mentions_the_file_and_the_line_and_the_key(
    shipped: Path, own: Path
) -> None:
    file = shipped / "node.yaml"
    file.write_text(file.read_text().replace("[systemd, containerd]", "[systemd, 7]"))

    with pytest.raises(BadInputError, match="has 7") as refusal:
        _read(shipped, own, "schema: 1\nextends: node\npackages: [jq]\n")

    assert (refusal.value.source, refusal.value.line) == (str(file), 11)
    assert refusal.value.key == "packages.1"


def test_error_for_recipes_that_extend_each_other_shows_the_recipes(
    shipped: Path, own: Path
) -> None:
    (own / "one.yaml").write_text("schema: 1\nextends: two\n")
    (own / "two.yaml").write_text("schema: 1\nextends: one.yaml\n")

    with pytest.raises(BadInputError) as refusal:
        load_catalogue(shipped, own).read("one")

    assert str(refusal.value) == (
        f"{own / 'two.yaml'}:2: key 'extends': The recipe extends itself: 'one' -> 'two' -> 'one'."
    )


@pytest.mark.parametrize(
    ("files", "sound", "broken"),
    [
        ({"bad.yaml": "schema: [\n"}, "node", "bad"),
        (
            {
                "node.yaml": "schema: 1\nextends: node\n",
                "mine.yaml": "schema: 1\nextends: ./../shipped/node.yaml\n",
            },
            "mine",
            "node",
        ),
    ],
    ids=["not-yaml", "same-name"],
)
def test_broken_recipe_does_not_prevent_the_reading_of_other_recipes(
    shipped: Path, own: Path, files: Mapping[str, str], sound: str, broken: str
) -> None:
    for name, text in files.items():
        (own / name).write_text(text)
    catalogue = load_catalogue(shipped, own)

    assert catalogue.read(sound).name == sound
    with pytest.raises(BadInputError, match=str(own / broken)):
        catalogue.read(broken)


def test_recipe_folder_that_is_given_twice_is_read_once(shipped: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(shipped)

    catalogue = load_catalogue(shipped, tmp_path / "link", SHIPPED_IMAGES)

    assert [*catalogue.files][-1] == "node"
    assert catalogue.duplicates == {}
