"""Errors say that the disk is full if, and only if, a full disk caused them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from harness.artifact_cache.disk_space import DiskSpace
from harness.errors import HarnessError, RequirementError

FULL, OVER_QUOTA, DENIED = (
    OSError(each, "x") for each in (errno.ENOSPC, errno.EDQUOT, errno.EACCES)
)


def space(free_mib: int) -> DiskSpace:
    return DiskSpace(Path("/x"), free=lambda _: free_mib << 20, remedy="free some")


def failure(cause: BaseException | None, context: BaseException | None = None) -> HarnessError:
    error = HarnessError("It failed.")
    error.__cause__, error.__context__ = cause, context
    return error


@pytest.mark.parametrize(
    ("error", "free_mib", "any_failure", "is_explained"),
    [
        (FULL, 5000, False, True),
        (OVER_QUOTA, 5000, False, True),
        (DENIED, 0, False, False),
        (failure(FULL), 5000, False, True),
        (failure(None, FULL), 5000, False, True),
        (failure(failure(None, OVER_QUOTA)), 5000, False, True),
        (failure(DENIED), 0, False, False),
        (failure(None), 31, True, True),
        (failure(None), 32, True, False),
        (failure(None), 31, False, False),
        (RequirementError("There is no QEMU."), 31, True, False),
    ],
)
def test_error_from_a_full_disk_says_that_the_disk_is_full(
    error: Exception, free_mib: int, *, any_failure: bool, is_explained: bool
) -> None:
    with (
        pytest.raises(Exception) as caught,  # noqa: PT011 - which one is the question
        space(free_mib).explain_full_disk("image", 700, any_failure=any_failure),
    ):
        raise error

    if is_explained:
        assert isinstance(caught.value, RequirementError)
        assert str(caught.value) == (
            "The disk of '/x' became full while the image was made (700 MiB are needed, "
            f"{free_mib} MiB were left); free some."
        )
    else:
        assert caught.value is error


def test_artifact_that_needs_more_space_than_is_free_is_refused() -> None:
    space(700).require("image", 700)
    with pytest.raises(
        RequirementError, match=r"needs 700 MiB of free space .* but 699 MiB are free"
    ):
        space(699).require("image", 700)
