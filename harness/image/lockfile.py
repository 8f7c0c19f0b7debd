"""Lock files: which one of its series an image was, so that a run can be repeated."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic
from pydantic import AfterValidator

from harness.datafile import read_data_file
from harness.errors import BadInputError, HarnessError, RequirementError
from harness.image.source import FORBID, Digest

if TYPE_CHECKING:
    from pathlib import Path

    from harness.image.source import Stock


def _digest(value: str) -> str:
    Digest.parse(value)
    return value


@dataclass(frozen=True, kw_only=True)
class Lock:
    """What a lock file says; `signed_by` is the fingerprint of the key that vouched for it."""

    __pydantic_config__ = FORBID

    schema: Literal[1] = 1
    file: str
    digest: Annotated[str, AfterValidator(_digest)]
    signed_by: Annotated[str, pydantic.Field(pattern=r"^[0-9A-F]{40}$")] | None
    fetched: str


def lock_path(stock: Stock) -> Path:
    """Return where the lock file lies: beside the image's entry, to be committed with it."""
    return stock.folder / f"{stock.name}.lock"


def read_lock(stock: Stock) -> Digest | None:
    """Return the digest that an image is locked to; raises BadInputError."""
    path = lock_path(stock)
    if not path.exists():
        return None
    lock = read_data_file(path, Lock)
    if lock.file != stock.file.file:
        raise BadInputError(
            f"This locks '{lock.file}', but the image '{stock.name}' is '{stock.file.file}' now; "
            "renew it with `harness image fetch --update`.",
            source=str(path),
            key="file",
        )
    return Digest.parse(lock.digest)


def write_lock(stock: Stock, lock: Lock, *, renew: bool = False) -> None:
    """Write the lock file, if there is none yet, or if it is to `renew`.

    Raises HarnessError where another process has just locked the image to another digest.
    """
    path = lock_path(stock)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        beside.write_text(
            f"# The '{stock.name}' that was fetched. Renew: harness image fetch --image "
            f"{stock.name} --update\n"
            + "".join(f"{name}: {json.dumps(value)}\n" for name, value in asdict(lock).items())
        )
        try:
            if renew:
                beside.rename(path)
            else:
                os.link(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    except FileExistsError:
        locked = read_lock(stock)
        if str(locked) != lock.digest:
            raise HarnessError(
                f"Another process has just locked the image '{stock.name}' to {locked} in "
                f"'{path}', while {lock.digest} was fetched here; run again to use the locked one."
            ) from None
    except OSError as error:
        raise RequirementError(
            f"The lock file '{path}' cannot be written ({error.strerror}); use a catalogue that "
            "you may write (--images-dir), or give the image's 'digest' there."
        ) from error
