"""Signatures of digest lists, checked by the status lines that gpgv prints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError, HarnessError
from harness.image import ImageFetchError
from harness.image.cloud.signature import check_signature, read_key
from harness.provisioning.command import CommandResult
from suites.unit.image.cloud_image_folder import PUBLISHER, SIGNATURES, STRANGER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: A subkey of the publisher's key; VALIDSIG names the subkey first and the primary key last.
SUBKEY = "5" * 40


@dataclass
class FakeGpgv:
    """Prints `status`, and exits with gpgv's code for a signature that it can't check."""

    status: str
    exit_code: int = 2
    timed_out: bool = False

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert argv[0] == "gpgv"
        assert "--weak-digest=SHA1" in argv
        assert timeout_s > 0
        assert (stdin, env) == (None, None)
        return CommandResult(
            argv=tuple(argv),
            exit_code=self.exit_code,
            stdout=self.status,
            stderr="",
            timed_out=self.timed_out,
        )


def said(word: str, key: str, *, by: str | None = None, name: str = "A publisher") -> str:
    """Return the status that gpgv prints about one signature with this result."""
    lines = ["NEWSIG", f"KEY_CONSIDERED {key} 0", f"{word} {key[-16:]} {name}"]
    if word in {"GOODSIG", "EXPKEYSIG", "EXPSIG", "REVKEYSIG"}:
        lines.append(f"VALIDSIG {by or key} 2026-08-21 1787313600 0 4 0 22 10 00 {key}")
    return "".join(f"[GNUPG:] {line}\n" for line in lines)


def check(gpgv: FakeGpgv) -> None:
    check_signature(
        b"list",
        b"signature",
        key=SIGNATURES / "publisher.asc",
        fingerprint=PUBLISHER,
        url="http://x/SHA256SUMS",
        runner=gpgv,
    )


GOOD = said("GOODSIG", PUBLISHER)
OF_A_STRANGER = said("GOODSIG", STRANGER)


def test_list_with_a_good_signature_of_the_publisher_is_accepted() -> None:
    """A list may be signed by an old key and a new key, and the keyring may have only one of them."""
    for status in (
        GOOD,
        said("GOODSIG", PUBLISHER, by=SUBKEY),
        said("GOODSIG", PUBLISHER, name="A\u2028[GNUPG:] BADSIG x"),
        OF_A_STRANGER + GOOD,
        GOOD + OF_A_STRANGER,
        said("BADSIG", STRANGER) + GOOD,
        # The key was renewed.
        said("EXPKEYSIG", PUBLISHER) + GOOD,
    ):
        check(FakeGpgv(status))


def test_list_without_a_valid_signature_is_refused() -> None:
    for status, why in (
        (OF_A_STRANGER, f"the signature was made by the key {STRANGER}"),
        (said("EXPKEYSIG", PUBLISHER) + OF_A_STRANGER, "was made by a key that has expired"),
        (OF_A_STRANGER + said("REVKEYSIG", PUBLISHER), "was made by a key that was revoked"),
        (said("EXPSIG", PUBLISHER) + OF_A_STRANGER, "has expired"),
        (said("BADSIG", PUBLISHER) + OF_A_STRANGER, "does not match the list"),
        (said("ERRSIG", PUBLISHER), "was made by an algorithm that is weak or unknown"),
        (said("ERRSIG", STRANGER) + f"[GNUPG:] NO_PUBKEY {STRANGER}\n", "made by another key"),
        (said("GOODSIG", STRANGER, by=PUBLISHER), f"the signature was made by the key {STRANGER}"),
        (
            said("GOODSIG", STRANGER, name=f"[GNUPG:] VALIDSIG {PUBLISHER}"),
            f"the signature was made by the key {STRANGER}",
        ),
        ("", "has no signature"),
        (GOOD.replace("[GNUPG:] NEWSIG\n", ""), "has no signature"),
    ):
        words = f"no valid signature by the key {PUBLISHER}: .*{re.escape(why)}"
        with pytest.raises(ImageFetchError, match=words):
            check(FakeGpgv(status, exit_code=0))


def test_gpgv_timeout_is_not_reported_as_an_error_in_the_digest_list() -> None:
    with pytest.raises(HarnessError, match="gpgv did not end") as caught:
        check(FakeGpgv(GOOD, timed_out=True))

    assert not isinstance(caught.value, ImageFetchError)


BEGIN = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
END = "-----END PGP PUBLIC KEY BLOCK-----"
ARMOR = f"{BEGIN}\n\na2V5\n=abcd\n{END}\n"


def test_public_keys_are_read_from_each_variant_of_pgp_armor(tmp_path: Path) -> None:
    file = tmp_path / "key.asc"
    for text, keys in (
        (ARMOR, b"key"),
        (ARMOR.replace("\n", "\r\n"), b"key"),
        (ARMOR.replace("=abcd\n", ""), b"key"),
        (ARMOR.replace("\n", " \n").rstrip(), b"key"),
        (ARMOR.replace(f"{BEGIN}\n", f"{BEGIN}\nVersion: a v1\nX-Comment:\n"), b"key"),
        (ARMOR.replace("a2V5", "a2\nV5"), b"key"),
        (f"\ufeff# A key: by hand\n{ARMOR}", b"key"),
        (ARMOR + ARMOR.replace("a2V5", "c2Vjb25k"), b"keysecond"),
    ):
        file.write_bytes(text.encode())

        assert read_key(file) == keys, text


def test_file_without_a_whole_public_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key.asc"
    for text in (
        "",
        "<html>404</html>",
        ARMOR.replace("PUBLIC", "PRIVATE"),
        ARMOR.partition("=abcd")[0],
        ARMOR.replace("a2V5", "a2V"),
        ARMOR.replace("a2V5", "a2V!"),
        BEGIN + "\n" * 10_000,
    ):
        file.write_text(text)

        with pytest.raises(BadInputError, match=r"key\.asc: .*(no complete public|is damaged)"):
            read_key(file)
