"""Lock files, which record the fetched image of a series, so that later runs use the same image."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic

from harness.datafile import read_data_file
from harness.errors import BadInputError, HarnessError, RequirementError
from harness.image.cloud.source import FORBID, Digest, DigestText

if TYPE_CHECKING:
    from pathlib import Path

    from harness.image.cloud.source import CloudImageRecipe


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The content of a lock file. `signed_by` is the fingerprint of the key that signed the list."""

    __pydantic_config__ = FORBID

    schema: Literal[1] = 1
    file: str
    digest: DigestText
    signed_by: Annotated[str, pydantic.Field(pattern=r"^[0-9A-F]{40}$")] | None
    fetched: str


def lock_path(recipe: CloudImageRecipe) -> Path:
    """Return the path of the lock file beside the recipe. Users should commit the lock file too."""
    return recipe.folder / f"{recipe.name}.lock"


def read_lock(recipe: CloudImageRecipe) -> Digest | None:
    """Return the digest in an image's lock file, or None if the file is missing.

    Raises BadInputError if the file is invalid, or is for another file of the publisher.
    """
    path = lock_path(recipe)
    if not path.exists():
        return None
    lock = read_data_file(path, Lock)
    if lock.file != recipe.file.file:
        raise BadInputError(
            f"The lock file is for '{lock.file}', but the file of the image '{recipe.name}' is "
            f"'{recipe.file.file}'; renew the lock file with `harness image fetch --update`.",
            source=str(path),
            key="file",
        )
    return Digest.parse(lock.digest)


def write_lock(recipe: CloudImageRecipe, lock: Lock, *, renew: bool = False) -> None:
    """Write the lock file. Replace an existing lock file only if `renew` is true.

    Raises HarnessError if another process has just locked the image to another digest.
    """
    path = lock_path(recipe)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            temporary.write_text(
                f"# The '{recipe.name}' that was fetched. Renew: harness image fetch --image "
                f"{recipe.name} --update\n"
                + "".join(f"{name}: {json.dumps(value)}\n" for name, value in asdict(lock).items())
            )
            if renew:
                temporary.rename(path)
            else:
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        locked = read_lock(recipe)
        if str(locked) != lock.digest:
            raise HarnessError(
                f"Another process has just locked the image '{recipe.name}' to {locked} in '{path}', "
                f"but this process fetched {lock.digest}; run again to use the locked image."
            ) from None
    except OSError as error:
        raise RequirementError(
            f"The lock file '{path}' cannot be written ({error.strerror}); extend "
            "the recipe in your own folder (--images-dir), where the lock file is then written, or set "
            "the image's 'digest' in the extending recipe."
        ) from error
