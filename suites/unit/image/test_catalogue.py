"""Recipes: which recipes are valid, which are refused, and what an image's key depends on."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.fixtures.machines import OPENED_GPU_IMAGES, REAL_DRIVER_IMAGE
from harness.gpu.gsp.firmware import FILES, make_firmware
from harness.image import FirmwareType
from harness.image.build.commands import input_entries
from harness.image.catalogue import Recipe, load_catalogue, read_recipe
from harness.image.cloud.signature import read_key
from harness.image.cloud.source import Algorithm, CloudImageRecipe, Digest, LocalImage
from harness.settings import SHIPPED_IMAGES
from suites.unit.image.cataloguefolder import LICENSED, RECIPE, a_recipe, write_catalogue
from suites.unit.image.cloud_image_folder import (
    ENTRY,
    a_cloud_image_recipe,
    write_cloud_image_recipe,
)

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[3]


_OWN_NAMES = [file.stem for file in sorted(SHIPPED_IMAGES.glob("*.yaml"))]


def _own_recipe(name: str) -> Recipe:
    recipe = load_catalogue().get(name)
    assert isinstance(recipe, Recipe)
    return recipe


def test_error_for_an_unknown_image_shows_the_known_images(tmp_path: Path) -> None:
    write_catalogue(tmp_path)

    with pytest.raises(BadInputError) as refusal:
        load_catalogue(tmp_path).get("nose")

    assert str(refusal.value).endswith(
        f", {tmp_path}: There is no image 'nose' in the catalogue, "
        f"only {', '.join(map(repr, [*_OWN_NAMES, 'node']))}."
    )


@dataclass(frozen=True, kw_only=True)
class Slip:
    """A recipe with a mistake, `instead` in place of `said`, and the expected error."""

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
        message="known keys are 'schema', 'kind', 'description', 'extends', 'replace', 'release', ",
    ),
    Slip(
        said="    suites: [bookworm, bookworm-updates]",
        instead="    suites: []",
        line=7,
        key="archives.0.suites",
        message="at least 1 item",
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
        message="'build', 'url' or 'file', but the file has 'bake'.",
    ),
    Slip(
        said="node/root",
        instead="nod/root",
        line=13,
        key="trees.0",
        message="There is no folder 'nod/root' in",
    ),
    Slip(
        said="node/root", instead="../root", line=13, key="trees.0", message="not lead out of it"
    ),
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


def test_error_for_an_invalid_recipe_mentions_the_file_and_the_line_and_the_key(
    tmp_path: Path,
) -> None:
    for slip in SLIPS:
        assert slip.said in RECIPE
        file = write_catalogue(tmp_path, recipe=RECIPE.replace(slip.said, slip.instead))

        with pytest.raises(BadInputError) as refusal:
            read_recipe(file)

        assert str(refusal.value).startswith(f"{file}:{slip.line}: key '{slip.key}':")
        assert slip.message in str(refusal.value)


def test_empty_catalogue_and_recipe_file_with_an_invalid_image_name_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadInputError, match=r"There is no image recipe \(\*\.yaml\) in"):
        load_catalogue(tmp_path)
    file = write_catalogue(tmp_path, name="My Node")

    with pytest.raises(BadInputError, match="'My Node' is not an image name"):
        read_recipe(file)


def test_image_key_does_not_depend_on_comments_or_order_or_licence_in_the_recipe(
    tmp_path: Path,
) -> None:
    """The licence says on which terms an image may be used, but does not change the image's content."""
    key = a_recipe(tmp_path).key(builder="one")

    reordered = RECIPE.replace("release: bookworm\n", "") + "# late\nrelease: bookworm\n"
    for recipe in (reordered, LICENSED):
        assert a_recipe(tmp_path, recipe=recipe).key(builder="one") == key


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


def test_image_key_changes_with_each_file_and_mode_and_link_of_the_recipe(tmp_path: Path) -> None:
    recipe = a_recipe(tmp_path)
    changes = {
        "tree": _edit("node/root/etc/fstab"),
        "script": _edit("node/scripts/setup.sh"),
        "file beside script": _edit("node/scripts/beside.txt"),
        "new file": _add_file,
        "mode": _make_executable,
        "link": _point_elsewhere,
    }
    keys = {recipe.key(builder="one"): "none"}
    for name, change in changes.items():
        change(tmp_path)
        keys[recipe.key(builder="one")] = name

    assert list(keys.values()) == ["none", *changes]


def test_fifo_among_the_files_of_a_recipe_is_refused(tmp_path: Path) -> None:
    recipe = a_recipe(tmp_path)
    fifo = recipe.trees[0].path / "fifo"
    os.mkfifo(fifo)

    with pytest.raises(BadInputError, match=f"^{fifo}: This is not a file, folder or link"):
        recipe.key(builder="one")


def test_symbolic_link_to_a_folder_is_listed_as_one_file_and_not_followed(tmp_path: Path) -> None:
    recipe = a_recipe(tmp_path)
    (recipe.trees[0].path / "etc/more").symlink_to("../usr")

    assert [*recipe.tree_files()] == ["etc/fstab", "etc/more", "usr/bin/tool"]


def test_image_key_changes_with_the_recipe_and_the_builder(tmp_path: Path) -> None:
    said = (
        "bookworm\n",
        "/deb.debian",
        "newest: 2",
        "containerd",
        "share/man",
        "580.126.09",
        "20260801",
    )
    instead = ("trixie\n", "/example", "newest: 3", "cri-o", "share/doc", "580.126.10", "20260901")
    texts = [RECIPE.replace(*each, 1) for each in zip(said, instead, strict=True)]
    assert RECIPE not in texts
    recipe = a_recipe(tmp_path)
    larger = replace(recipe, file=replace(recipe.file, disk_gib=recipe.file.disk_gib + 1))
    recipes = (recipe, larger, replace(recipe, name="other"))

    keys = {recipe.key(builder="two"), *(each.key(builder="one") for each in recipes)}
    keys |= {a_recipe(tmp_path, recipe=text).key(builder="one") for text in texts}

    assert len(keys) == 4 + len(texts)


CLOUD_IMAGE_SLIPS = [
    Slip(
        said="folder: {folder}",
        instead="folder: ftp://example.org/",
        line=4,
        key="folder",
        message="String should match pattern",
    ),
    Slip(
        said="file: tiny", instead="file: ../tiny", line=5, key="file", message="'../tiny.qcow2'"
    ),
    Slip(
        said="sha256",
        instead="md5",
        line=8,
        key="sums.algorithm",
        message="'sha256' or 'sha512', but the file has 'md5'.",
    ),
    Slip(
        said="keys/publisher.asc",
        instead="keys/publishers.asc",
        line=11,
        key="signature.key",
        message="There is no file 'keys/publishers.asc' in",
    ),
    Slip(
        said="signature:",
        instead="digest: sha256:12",
        line=9,
        key="digest",
        message="A digest is 'sha256:' and 64 lower-case hexadecimal digits",
    ),
]


def test_error_for_an_invalid_cloud_image_recipe_mentions_the_file_and_the_line_and_the_key(
    tmp_path: Path,
) -> None:
    for slip in CLOUD_IMAGE_SLIPS:
        assert slip.said in ENTRY
        entry = ENTRY.replace(slip.said, slip.instead)
        if slip.key == "digest":
            entry = entry.partition("  file: SHA256SUMS.gpg")[0]
        file = write_cloud_image_recipe(tmp_path, folder="https://example.org/", entry=entry)

        with pytest.raises(BadInputError) as refusal:
            read_recipe(file)

        assert str(refusal.value).startswith(f"{file}:{slip.line}: key '{slip.key}':")
        assert slip.message in str(refusal.value)


def test_unsigned_image_from_an_http_url_is_refused(tmp_path: Path) -> None:
    unsigned = ENTRY.partition("signature:")[0]

    with pytest.raises(BadInputError) as refusal:
        a_cloud_image_recipe(tmp_path, folder="http://example.org/x", entry=unsigned)

    assert "'http://example.org/x/' can't be trusted without TLS" in str(refusal.value)
    assert list(
        a_cloud_image_recipe(tmp_path, folder="https://example.org/x", entry=unsigned).locations()
    ) == ["https://example.org/x/"]


def test_preferred_mirror_is_the_first_download_location_and_is_listed_once(
    tmp_path: Path,
) -> None:
    recipe = a_cloud_image_recipe(
        tmp_path,
        folder="https://one.example.org/x",
        more="mirrors: ['https://two.example.org/x/', 'http://three.example.org/x/']\n",
    )

    assert list(recipe.locations(["https://two.example.org/x"])) == [
        "https://two.example.org/x/",
        "https://one.example.org/x/",
        "http://three.example.org/x/",
    ]


def test_image_name_that_is_a_path_refers_to_a_local_image() -> None:
    catalogue = load_catalogue()

    for name in ("my.qcow2", "images/my.img", "../bakes/noble"):
        assert catalogue.get(name) == LocalImage.at(Path(name))


def test_local_image_recipe_has_a_path_and_can_set_the_firmware(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("{schema: 1, kind: file, path: ../out/node.raw}")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/efi.yaml").write_text("schema: 1\nextends: ours\nfirmware: uefi\n")
    catalogue = load_catalogue(tmp_path, tmp_path / "own")

    ours, efi = catalogue.get("ours"), catalogue.get("efi")

    assert isinstance(ours, LocalImage)
    assert isinstance(efi, LocalImage)
    assert (ours.name, ours.path) == ("ours", tmp_path / "../out/node.raw")
    assert (efi.name, efi.path, efi.file.firmware) == ("efi", ours.path, FirmwareType.UEFI)


DIGEST = "0f" * 32


def test_url_with_a_digest_is_a_cloud_image_with_a_pinned_digest() -> None:
    source = load_catalogue().get(
        f"https://images.example.org:8443/2026/our-node_2.qcow2#sha256={DIGEST}"
    )

    assert isinstance(source, CloudImageRecipe)
    assert source.name == "our-node-2"
    assert source.pinned == Digest(algorithm=Algorithm.SHA256, value=DIGEST)
    assert list(source.locations()) == ["https://images.example.org:8443/2026/"]
    assert source.file.file == "our-node_2.qcow2"


REFUSED_URLS = {
    "https://example.org/x.qcow2": "has no digest, which is needed to verify the file",
    "https://[::1/x.qcow2#sha256=00": "is not a URL (Invalid IPv6 URL)",
    "https://example.org:99999/x.qcow2#sha256=00": "is not a URL (Port out of range",
    f"http://example.org/x.qcow2#sha256={DIGEST}": "is a URL of http; give an https URL.",
    f"file:///x.qcow2#sha256={DIGEST}": "is a URL of file; give the path of the file.",
    "https://example.org/x.qcow2#sha256=12": "has the fragment 'sha256=12', which is not a digest. A digest is",
    f"https://example.org/#sha256={DIGEST}": "names no file",
    f"https:///x.qcow2#sha256={DIGEST}": "names no file",
    f"https://example.org/x.qcow2?sig=1#sha256={DIGEST}": "has a query or a password",
    f"https://me:pw@example.org/x.qcow2#sha256={DIGEST}": "has a query or a password",
    f"https://token@example.org/x.qcow2#sha256={DIGEST}": "has a query or a password",
    f"http://me:pw@example.org/x.qcow2?sig=1#sha256={DIGEST}": "is a URL of http",
    f"https://me:p/w@example.org/x.qcow2#sha256={DIGEST}": "is not a URL; give https://HOST",
    f"https://me:p\ns/w@example.org/x.qcow2#sha256={DIGEST}": "is not a URL; give https://HOST",
    f"https://me:12/w@example.org/x.qcow2#sha256={DIGEST}": "has an '@', which may be the end",
    f"https:/me:pw@example.org/x.qcow2#sha256={DIGEST}": "names no file",
    f"https:me:pw@example.org/x.qcow2#sha256={DIGEST}": "names no file",
    f"https://me:p?w@example.org/x.qcow2#sha256={DIGEST}": "is not a URL; give https://HOST",
    f"https://me:p#w@example.org/x.qcow2#sha256={DIGEST}": "is not a URL; give https://HOST",
}


def test_url_that_cannot_be_trusted_is_refused() -> None:
    catalogue = load_catalogue()

    for url, sentence in REFUSED_URLS.items():
        with pytest.raises(BadInputError) as refusal:
            catalogue.get(url)

        shown = url
        for secret in (
            "me:pw",
            "me:12/w",
            "me:p/w",
            "me:p\ns/w",
            "me:p?w",
            "me:p#w",
            "token",
            "sig=1",
        ):
            shown = shown.replace(secret, "…")
        assert str(refusal.value).startswith(f"--image: '{shown}' {sentence}")


def test_error_for_a_recipe_with_a_password_does_not_contain_the_password(tmp_path: Path) -> None:
    for folder in (
        "https://me:secret@a.org/",
        "https://me:se/cret@a.org/",
        "ftp://me:secret@a.org/",
    ):
        file = write_cloud_image_recipe(tmp_path, folder=folder, entry=ENTRY)

        with pytest.raises(BadInputError) as refusal:
            read_recipe(file)

        assert "cret" not in str(refusal.value)


PINNED = ENTRY.partition("sums:")[0]


def test_cloud_image_needs_a_digest_list_or_a_digest(tmp_path: Path) -> None:
    digest = f"digest: sha256:{DIGEST}\n"
    recipe = a_cloud_image_recipe(
        tmp_path, folder="http://example.org/x", entry=PINNED, more=digest
    )
    assert (recipe.file.sums, recipe.is_authenticated) == (None, True)

    # A signature signs the digest list, so a recipe with a signature needs the list.
    for more in ("", f"{digest}signature:{ENTRY.partition('signature:')[2]}"):
        with pytest.raises(
            BadInputError, match=r"key 'sums': This key, which names the publisher's list"
        ):
            a_cloud_image_recipe(tmp_path, folder="https://example.org/x", entry=PINNED, more=more)


def test_cloud_image_recipe_can_set_the_driver_and_firmware(tmp_path: Path) -> None:
    more = (
        "firmware: uefi\ndriver:\n  repository: mcr.example.org/gpu\n  version: 580.1.2\n"
        '  sha: "2026"\n'
    )

    recipe = a_cloud_image_recipe(tmp_path, folder="https://example.org/", more=more)

    assert recipe.file.firmware is FirmwareType.UEFI
    assert recipe.file.driver is not None
    assert recipe.file.driver.reference == "mcr.example.org/gpu:580.1.2-2026"


def test_fingerprint_of_each_shipped_signing_key_matches_the_recipe_of_its_cloud_image() -> None:
    """The fingerprint of a version 4 key is the SHA-1 of its first packet (RFC 9580, 5.5.4)."""
    signed = [
        entry
        for entry in load_catalogue().entries.values()
        if isinstance(entry, CloudImageRecipe) and entry.file.signature is not None
    ]

    assert {entry.name for entry in signed} == {"ubuntu-22.04", "ubuntu-24.04"}
    for entry in signed:
        assert entry.key_file is not None
        assert entry.file.signature is not None
        key = read_key(entry.key_file)
        # An old-format packet of a public key whose length takes two bytes.
        assert key[0] == 0x99
        packet = key[: 3 + int.from_bytes(key[1:3], "big")]
        digest = hashlib.sha1(packet, usedforsecurity=False).hexdigest()
        assert digest.upper() == entry.file.signature.fingerprint


def test_unit_of_the_guest_agent_is_enabled_and_wanted_by_its_virtio_port() -> None:
    """The image's script makes the link by which systemd starts the agent."""
    recipe = _own_recipe("debian-12")
    entries = {entry.path: entry for entry in input_entries(recipe)}
    unit = entries["etc/systemd/system/harness-agent.service"].content.decode()
    script = (recipe.folder / "debian-12/scripts/setup.sh").read_text()

    assert "\nWantedBy=dev-virtio\\x2dports-harness.agent.device\n" in unit
    assert re.search(r"^systemctl enable .*\bharness-agent\.service\b", script, re.MULTILINE)
    assert entries["usr/lib/harness/agent-loader"].mode == 0o755


def test_shipped_images_contain_no_links_and_no_empty_folders_and_no_backslashes() -> None:
    """A wheel can contain only regular files, and an installer may read a backslash as a separator."""
    for path in (REPOSITORY / "images").rglob("*"):
        assert not path.is_symlink(), f"{path} is a link; a script of the image can make it."
        assert path.is_file() or any(path.iterdir()), f"{path} is an empty folder."
        assert "\\" not in path.name


def test_shipped_images_with_nvidias_driver_need_its_licence() -> None:
    names = {REAL_DRIVER_IMAGE, *OPENED_GPU_IMAGES}

    licences = {name: _own_recipe(name).file.licence for name in names}

    assert {name: each and each.id for name, each in licences.items()} == dict.fromkeys(
        names, "nvidia-debian-non-free"
    )


def test_image_with_the_free_nvidia_driver_needs_no_licence_and_has_the_generated_firmware() -> (
    None
):
    """The firmware file must be made again if the harness makes another firmware."""
    recipe = load_catalogue().get("debian-13-nvidia-free")

    assert isinstance(recipe, Recipe)
    assert recipe.file.licence is None
    assert {each for archive in recipe.file.archives for each in archive.components} == {
        "main",
        "contrib",
    }
    folder = "usr/lib/firmware/nvidia/550.163.01/"
    assert {
        path.removeprefix(folder): file.read_bytes()
        for path, file in recipe.tree_files().items()
        if "firmware" in path
    } == {name: make_firmware("550.163.01", families) for name, families in FILES.items()}
