"""Any answer of a registry becomes a value of the right form, or raises a StoreError."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import struct
import time
import zipfile
from email.message import Message
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.artifact_cache import FileFact
from harness.http_headers import content_range, length, retry_after
from harness.http_requests import RefusedUrlError, joined, origin
from harness.image import ImageFetchError
from harness.image.cloud.digest_lists import read_sums
from harness.image.cloud.source import Algorithm
from harness.shared_store import StoreError
from harness.shared_store.answers import (
    FILE_TYPE,
    REST_TYPE,
    TITLE,
    check_layers,
    next_page,
    read_artifact,
    read_files,
    read_moment,
    read_notes,
    read_object,
    read_page,
    read_parts,
)
from harness.shared_store.credentials import Authorizer
from harness.shared_store.packing import DataBudget, unpack_file, unpack_rest
from suites.fakes.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

REGISTRY = "https://registry.example/v2/"
SHA256 = hashlib.sha256(b"x").hexdigest()

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**30), 1 << 63])
    | st.floats()
    | st.text()
    | st.text(st.characters(codec=None, categories=["Cs", "Cc"]))
)
VALUES = st.recursive(
    SCALARS,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3),
    max_leaves=8,
)
TITLES = (
    st.sampled_from(["disk", "a/b", "a", "../a", "/a", ".", "", "manifest.json", "a\0", "\x1b[2J"])
    | st.text()
)


def mostly(*right: object) -> st.SearchStrategy[Any]:
    """Return a strategy that draws one of the right values, or any value."""
    return st.sampled_from(right) | VALUES


DIGESTS = mostly(f"sha256:{SHA256}", f"sha256:{0:064}", "sha512:00", f"sha256:{SHA256}\n")
LAYERS = st.fixed_dictionaries(
    {
        "digest": DIGESTS,
        "size": mostly(1, 30, 10**15),
        "mediaType": mostly(FILE_TYPE, REST_TYPE),
        "annotations": st.fixed_dictionaries({TITLE: TITLES | VALUES}) | VALUES,
    }
)
MANIFESTS = st.fixed_dictionaries(
    {},
    optional={
        "artifactType": VALUES,
        "config": st.fixed_dictionaries({"digest": DIGESTS}) | VALUES,
        "layers": st.lists(LAYERS | VALUES, max_size=4) | VALUES,
        "annotations": st.dictionaries(st.text(), VALUES, max_size=3) | VALUES,
    },
)
DESCRIPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "files": st.dictionaries(
            TITLES,
            st.fixed_dictionaries({"size": mostly(0, 1, 10**18), "sha256": mostly(SHA256)})
            | VALUES,
            max_size=4,
        )
        | VALUES,
        "parts": st.dictionaries(st.text(), VALUES, max_size=2) | VALUES,
    },
)


def as_bytes(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Return a strategy that draws the values as JSON, sometimes damaged, or any bytes."""

    def dumped(value: object, *, is_ascii: bool) -> bytes:
        return json.dumps(value, ensure_ascii=is_ascii).encode(errors="surrogatepass")

    whole = st.builds(
        lambda value, is_ascii: dumped(value, is_ascii=is_ascii), values, st.booleans()
    )
    return whole | damaged(whole) | st.binary()


def damaged(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Return a strategy that replaces a part of the bytes that `whole` draws."""
    return st.builds(
        lambda raw, begin, count, piece: raw[:begin] + piece + raw[begin + count :],
        whole,
        st.integers(0, 400),
        st.integers(0, 40),
        st.binary(max_size=40),
    )


def value_or_error(read: Callable[[], object]) -> object:
    """Return the value that was read, or None for a StoreError; its message must be short."""
    said = ""
    try:
        return read()
    except StoreError as error:
        said = str(error)
    assert len(said) < 10_000
    assert "\x1b" not in said
    return None


@given(MANIFESTS, as_bytes(DESCRIPTIONS))
def test_any_manifest_and_description_are_read_or_refused(
    manifest: dict[str, Any], description: bytes
) -> None:
    artifact = value_or_error(lambda: read_artifact(manifest, "It is malformed"))
    files = value_or_error(lambda: read_files(description, "x"))
    value_or_error(lambda: dict(read_parts(description, "x")))
    notes = read_notes(manifest)
    assert all(len(each.encode()) < 1000 and "\x1b" not in each for each in notes.values())
    for note in notes.values():
        moment = read_moment(note)
        assert moment is None or moment.tzinfo is not None
    if artifact is not None:
        assert all(layer.size > 0 for layer in artifact.layers)  # type: ignore[attr-defined]
        known: dict[str, FileFact] = files if isinstance(files, dict) else {}
        value_or_error(lambda: check_layers(artifact.layers, known, "x"))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "read",
    [
        lambda: read_artifact({"layers": [[]] * 30_000}, "It"),
        lambda: read_artifact({"layers": [[]] * 4000}, "It"),
        lambda: read_files(
            json.dumps({"files": dict.fromkeys(map(str, range(15_000)))}).encode(), "x"
        ),
        lambda: read_page(b'{"tags": [' + b"[]," * 30_000 + b"[]]}", "It"),
    ],
)
def test_list_with_many_wrong_items_raises_one_error(read: Callable[[], object]) -> None:
    """One error for each of a million items would take a gigabyte and a minute."""
    with limited_errors(), pytest.raises(StoreError):
        read()


@contextlib.contextmanager
def limited_errors() -> Iterator[None]:
    """Fail if the block takes 0.8 seconds of processor time or more."""
    begun = time.process_time()
    yield
    assert time.process_time() - begun < 0.8


@given(as_bytes(MANIFESTS))
def test_manifest_of_any_bytes_is_an_object_or_is_refused(raw: bytes) -> None:
    found = value_or_error(lambda: read_object(raw, "It is malformed"))
    assert found is None or isinstance(found, dict)


@given(
    as_bytes(st.fixed_dictionaries({}, optional={"tags": st.lists(TITLES | VALUES) | VALUES})),
    st.text() | st.builds(lambda target: f'<{target}>; rel="next"', st.text()),
)
def test_any_page_of_tags_has_valid_tags_and_an_https_link_or_is_refused(
    raw: bytes, link: str
) -> None:
    tags = value_or_error(lambda: list(read_page(raw, "It is malformed")))
    assert all("/" not in tag and tag not in {"", ".", ".."} for tag in tags or [])  # type: ignore[attr-defined]
    following = next_page(link)
    if following is not None:
        with contextlib.suppress(RefusedUrlError):
            assert joined(REGISTRY, following).startswith("https://")


@given(
    st.text()
    | st.builds(
        lambda scheme, realm, more: f'{scheme} realm="{realm}", {more}',
        st.sampled_from(["Bearer", "bearer", "Basic"]),
        st.sampled_from([REGISTRY, "http://registry.example", "https://a?b=c"]) | st.text(),
        st.text() | st.just('service="s",scope="repository:a:pull"'),
    ),
    as_bytes(
        st.fixed_dictionaries({}, optional={"token": mostly("t"), "access_token": mostly("t")})
    ),
)
def test_no_challenge_or_token_sends_credentials_to_another_host(
    challenge: str, answer: bytes
) -> None:
    asked: list[str] = []

    def get(url: str, headers: object) -> bytes:
        del headers
        asked.append(url)
        return answer

    authorizer = Authorizer("cHc=", registry=REGISTRY, get=get)

    if authorizer.answer(challenge, url=REGISTRY):
        proof = authorizer.headers(REGISTRY)["Authorization"]
        assert proof.isascii()
        assert proof.isprintable()
        assert authorizer.headers("https://other.example/") == {}
    assert all(url.startswith("https://") for url in asked)


@given(
    st.text()
    | st.builds(lambda host, path: f"http://{host}/{path}", st.text(max_size=9), st.text())
)
def test_any_url_has_a_valid_origin_or_is_refused(url: str) -> None:
    with contextlib.suppress(RefusedUrlError):
        scheme, host, port = origin(url)
        assert scheme in {"http", "https"}
        assert host
        assert 0 < port < 1 << 16


@given(
    st.text()
    | st.from_regex(r"bytes [0-9*]{1,30}-?[0-9]*/[0-9*]{1,30}")
    | st.from_regex(
        r"(Fri, )?[0-9]{1,5} Aug [0-9]{1,6} [0-9]{2}:[0-9]{2}:[0-9]{2} [+-]?[0-9A-Z]{1,9}"
    )
    | st.integers().map(str)
)
def test_numbers_read_from_any_headers_are_not_negative(value: str) -> None:
    headers = Message()
    for name in ("Content-Length", "Content-Range", "Retry-After"):
        # `headers[name] = value` would refuse lines that a server can send.
        headers._headers.append((name, value))  # type: ignore[attr-defined]

    assert (length(headers) or 0) >= 0
    assert all((each or 0) >= 0 for each in content_range(headers))
    assert (retry_after(headers, FakeClock()) or 0.0) >= 0


@given(
    st.text()
    | st.lists(
        st.builds(
            lambda digest, joint, name: f"{digest}{joint}{name}\n",
            st.sampled_from(["a" * 64, "b" * 64, "A" * 64]),
            st.sampled_from(["  ", " *", "\t"]),
            st.sampled_from(["x", "./x", ".//x", "../x"]) | st.text(),
        )
    ).map("".join)
)
def test_any_list_of_digests_has_printable_names_or_is_refused(text: str) -> None:
    with contextlib.suppress(ImageFetchError):
        found = read_sums(text, algorithm=Algorithm.SHA256, url="u")
        assert all(name.isprintable() for name in found)


def a_zip(entries: list[tuple[str, bytes]]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name.replace("\0", "")), content)
    return made.getvalue()


ZIPS = st.lists(
    st.tuples(TITLES.filter(lambda title: title.isprintable()), st.binary(max_size=50)),
    max_size=3,
    unique_by=lambda entry: entry[0].partition("\0")[0],
).map(a_zip)


@given(raw=ZIPS | damaged(ZIPS))
def test_unpacking_any_archive_writes_only_below_the_target_folder(
    raw: bytes, tmp_path_factory: Any
) -> None:
    top: Path = tmp_path_factory.mktemp("x")
    part, into = top / "part", top / "into"
    into.mkdir()
    part.write_bytes(raw)

    value_or_error(lambda: _written(part, into))

    assert {path.name for path in top.iterdir()} == {"part", "into"}


def _written(part: Path, into: Path) -> None:
    try:
        unpack_rest(part, into, "x", {"disk.qcow2"})
    except OSError as error:
        # A pull reports this error as a StoreError.
        raise StoreError(str(error)) from error


def test_archive_with_an_impossible_entry_offset_is_refused(tmp_path: Path) -> None:
    raw = a_zip([("a", b"x")])
    begin = raw.index(b"PK\1\2")
    # The entry's offset is in an extra field of zip64: 16 bytes after the name of one byte.
    entry = bytearray(raw[begin : begin + 47])
    entry[30:32] = (12).to_bytes(2, "little")
    entry[42:46] = b"\xff" * 4
    extra = struct.pack("<HHQ", 1, 8, (1 << 64) - 1)
    end = bytearray(raw[begin + 47 :])
    end[12:16] = (47 + len(extra)).to_bytes(4, "little")
    (tmp_path / "part").write_bytes(raw[:begin] + entry + extra + end)

    with pytest.raises(StoreError, match="The other files of 'x' can't be unpacked"):
        unpack_rest(tmp_path / "part", tmp_path, "x", {"disk.qcow2"})


CONTENT = bytes(40_000) + bytes(range(256)) * 20
PACKED = gzip.compress(CONTENT, 1, mtime=0)


@given(raw=damaged(st.just(PACKED)) | st.binary())
def test_unpacking_any_blob_writes_at_most_one_mib_beyond_the_file_size(
    raw: bytes, tmp_path_factory: Any
) -> None:
    top: Path = tmp_path_factory.mktemp("x")
    (top / "part").write_bytes(raw)
    fact = FileFact(size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())

    value_or_error(
        lambda: unpack_file(
            top / "part", top / "disk", fact, "x", DataBudget("x", packed_bytes=len(raw))
        )
    )

    assert (top / "disk").stat().st_size <= len(CONTENT) + (1 << 20)
