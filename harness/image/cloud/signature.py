"""Verifies signatures of digest lists with gpgv."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.image import ImageFetchError
from harness.lease import temporary_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.provisioning.command import Runner

_GPGV_S = 30.0
#: apt refuses signatures with these hashes too; gpgv itself refuses MD5.
_WEAK = ("SHA1", "RIPEMD160")
_BEGIN, _END = b"-----BEGIN PGP PUBLIC KEY BLOCK-----", b"-----END PGP PUBLIC KEY BLOCK-----"

#: gpgv's status words for a bad signature; if gpgv prints no status word, the file has no signature.
_REASONS = {
    "BADSIG": "does not match the list",
    "NO_PUBKEY": "was made by another key",
    "ERRSIG": "was made by an algorithm that is weak or unknown",
    "EXPSIG": "has expired",
    "EXPKEYSIG": "was made by a key that has expired",
    "REVKEYSIG": "was made by a key that was revoked",
}


def check_signature(
    signed: bytes,
    signature: bytes,
    *,
    key: Path,
    fingerprint: str,
    url: str,
    runner: Runner,
) -> None:
    """Check that `signature` is a valid signature of `signed` by the key with this fingerprint.

    `key` is the file of the key, armored or not. `url` is the URL of the list. Raises
    ImageFetchError if the signature is invalid, and RequirementError if the host has no gpgv.
    """
    with temporary_folder("harness-signature") as folder:
        (folder / "keyring.gpg").write_bytes(read_key(key))
        (folder / "list").write_bytes(signed)
        (folder / "list.sig").write_bytes(signature)
        result = runner.run(
            [
                "gpgv",
                *("--homedir", str(folder)),
                *("--status-fd", "1"),
                # gpgv would take a path with a colon for a URL; this name is a file in gpgv's home.
                *("--keyring", "keyring.gpg"),
                *(f"--weak-digest={each}" for each in _WEAK),
                f"{folder}/list.sig",
                f"{folder}/list",
            ],
            timeout_s=_GPGV_S,
        )
    if result.exit_code == 127:
        raise RequirementError(
            "Verifying an image's signature needs 'gpgv', which this host lacks; install it with "
            "'apt-get install --no-install-recommends gpgv'."
        )
    if result.timed_out:
        raise HarnessError(f"gpgv did not end while it verified '{url}'.\n{result.render()}")
    signatures = list(_signatures(result.stdout))
    if any(each.get("VALIDSIG") == fingerprint and "GOODSIG" in each for each in signatures):
        return
    # An error about a signature by the wanted key explains more than an error about another key.
    signatures.sort(key=lambda each: each.get("VALIDSIG") != fingerprint)
    raise ImageFetchError(
        f"The list '{url}' has no valid signature by the key {fingerprint}: {_why(signatures)}. No "
        "image was downloaded; do not use this location, and name another location with --mirror."
    )


def _signatures(status: str) -> Iterator[dict[str, str]]:
    """Yield gpgv's status words about each signature, each word with its last argument.

    The last argument of VALIDSIG is the fingerprint of the primary key.
    """
    # splitlines() is not used: it treats some Unicode characters that a signer's name may contain
    # as line ends.
    for part in f"\n{status}".split("\n[GNUPG:] NEWSIG")[1:]:
        said = [line.split()[1:] for line in part.split("\n") if line.startswith("[GNUPG:] ")]
        yield {words[0]: words[-1] for words in said if words}


def _why(signatures: list[dict[str, str]]) -> str:
    for each in signatures:
        for word, reason in _REASONS.items():
            if word in each:
                return f"the signature {reason}"
        if "VALIDSIG" in each:
            return f"the signature was made by the key {each['VALIDSIG']}"
    return "the signature file has no signature"


def read_key(file: Path) -> bytes:
    """Return the public keys in a file without armor, since gpgv can't read armor. Raises BadInputError.

    A file may have several armored keys, and text between the keys. Checksums are optional since
    RFC 9580.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadInputError(
            f"The signing key cannot be read ({error.strerror}).", source=str(file)
        ) from error
    if not content.isascii() and _BEGIN not in content:
        return content
    keys = [block.partition(_END) for block in content.split(_BEGIN)[1:]]
    if not keys or not all(end for _, end, _ in keys):
        raise BadInputError(
            "This file of the signing key has no complete public key.", source=str(file)
        )
    try:
        return b"".join(_without_armor(block) for block, _, _ in keys)
    except binascii.Error as error:
        raise BadInputError(
            f"The signing key's armor is damaged ({error}).", source=str(file)
        ) from error


def _without_armor(block: bytes) -> bytes:
    """Decode the lines of base64. Skip the headers, which have a colon, and the checksum."""
    lines = [line.strip() for line in block.splitlines()]
    data = [line for line in lines if b":" not in line and not line.startswith(b"=")]
    return base64.b64decode(b"".join(data), validate=True)
