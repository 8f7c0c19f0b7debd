"""Which layers and files an artifact may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.artifact_cache import FileFact
from harness.limits import STORE_OTHER_MIB
from harness.shared_store import StoreError
from harness.shared_store.answers import (
    FILE_TYPE,
    REST_TYPE,
    Layer,
    check_layers,
    read_token,
    require_own,
)
from harness.shared_store.packing import DataBudget

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGEST = "sha256:" + "0" * 64
FILES = {
    "disk.qcow2": FileFact(size=10_000, sha256="0" * 64),
    "ram": FileFact(size=0, sha256="1" * 64),
}


def a_layer(title: str, size: int = 1, media_type: str = FILE_TYPE) -> Layer:
    return Layer(title=title, digest=DIGEST, size=size, media_type=media_type)


BOTH = (a_layer("disk.qcow2"), a_layer("ram"))


@pytest.mark.parametrize(
    "layers",
    [
        BOTH,
        (*BOTH, a_layer("rest", media_type=REST_TYPE)),
        # The title of the layer with the other files means nothing.
        (*BOTH, a_layer("ram", media_type=REST_TYPE)),
        (a_layer("disk.qcow2", 10_000 + 10 + 1024), a_layer("ram", 1024)),
        (*BOTH, a_layer("rest", STORE_OTHER_MIB.bytes, REST_TYPE)),
    ],
)
def test_layers_for_listed_files_and_one_archive_of_other_files_are_accepted(
    layers: Sequence[Layer],
) -> None:
    check_layers(layers, FILES, "own")


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        (BOTH[:1], "lacks the file 'ram'"),
        ((*BOTH, a_layer("x")), "has the file 'x', which its description does not list"),
        ((*BOTH, a_layer("ram")), "has the file 'ram' twice"),
        ((*BOTH, *[a_layer("rest", media_type=REST_TYPE)] * 2), "has the file 'rest' twice"),
        ((*BOTH, a_layer("x", media_type="other")), "a layer of the unknown type 'other'"),
        ((a_layer("disk.qcow2", 10_000 + 10 + 1025), BOTH[1]), "which has only 10000 bytes when"),
        ((*BOTH, a_layer("rest", STORE_OTHER_MIB.bytes + 1, REST_TYPE)), "store-other-mib"),
    ],
)
def test_missing_or_repeated_or_unlisted_or_too_large_layers_are_refused(
    layers: Sequence[Layer], why: str
) -> None:
    with pytest.raises(StoreError, match=why):
        check_layers(layers, FILES, "own")


@pytest.mark.parametrize(
    "titles",
    [
        *([title] for title in ("../a", "/a", "//a", "./a", ".", "a\0b", "a" * 256)),
        ["/".join("abcdefghijklmnopq")],
        ["used"],
        ["verified.json/x"],
        ["\u00e9" * 128],
        ["/".join(["x" * 200] * 6)],
        ["a", "a"],
        ["a", "a/b"],
        ["a/b/c", "a"],
    ],
)
def test_path_outside_of_the_artifact_folder_is_refused(titles: list[str]) -> None:
    with pytest.raises(StoreError, match="'own' lists"):
        require_own(titles, "own")


def test_paths_within_the_folder_are_accepted_up_to_their_limits() -> None:
    require_own(["a/used", "a/b", "..a", "/".join("a" * 16), "x" * 255, "caf\u00e9"], "own")
    with pytest.raises(StoreError, match="'own' lists the file 'a' twice"):
        require_own(["a"], "own", taken={"a": 1})


@pytest.mark.parametrize(
    ("answer", "token"),
    [
        (b'{"token": "one", "access_token": "two"}', "one"),
        (b'{"access_token": "two"}', "two"),
        (b'{"token": null, "access_token": "two"}', "two"),
        (b'{"token": "", "access_token": "two"}', "two"),
        (b"{}", None),
        (b'{"token": "a b"}', None),
        (b'{"token": "a\\nb"}', None),
        (b'{"token": "' + b"x" * 16_385 + b'"}', None),
        (b'{"token": {"a": 1}}', None),
    ],
)
def test_token_is_read_from_either_of_two_keys(answer: bytes, token: str | None) -> None:
    if token is not None:
        assert read_token(answer) == token
        return
    with pytest.raises(StoreError, match="answer to the log-in is malformed"):
        read_token(answer)


def test_unpacked_data_is_limited_to_a_multiple_of_the_packed_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_STORE_DATA_TIMES", "10")
    small, large = DataBudget("own", 100), DataBudget("own", 100 << 20)

    small.take(256 << 20)
    large.take(1000 << 20)

    for budget in (small, large):
        with pytest.raises(StoreError, match="store-data-times"):
            budget.take(1)
