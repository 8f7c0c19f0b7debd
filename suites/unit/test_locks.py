"""`locks/`: each requirement has one version and its digests, and meets what the package asks for."""

from __future__ import annotations

import contextlib
import functools
import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_REPOSITORY = Path(__file__).parents[2]
_PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
_OPTIONS = frozenset({"--only-binary :all:"})
_DIGEST = re.compile(r"--hash=sha256:[0-9a-f]{64}")
#: What the environment of each file has to meet, by the extra that asks for it.
_LOCKS = {
    "wheel.txt": ("",),
    "dev.txt": ("", "dev"),
    "libvirt.txt": ("libvirt",),
}


class LockError(Exception):
    """A line of a lock file names the source of a package, or does not pin an exact file."""


def read_lock(text: str) -> list[Requirement]:
    """Return the requirements of a lock; each has one version and digests."""
    found = []
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    for line in lines:
        if line.lstrip().startswith("#") or line in _OPTIONS:
            continue
        words, *digests = line.split(" --hash")
        if words.startswith("-") or "@" in words or "://" in line:
            raise LockError(f"'{line}' says where a package comes from.")
        requirement = Requirement(words)
        versions = [(each.operator, "*" in each.version) for each in requirement.specifier]
        if versions != [("==", False)]:
            raise LockError(f"'{words}' is not one version.")
        if not digests or not all(_DIGEST.fullmatch(f"--hash{each.strip()}") for each in digests):
            raise LockError(f"'{words}' has no SHA-256 digests.")
        found.append(requirement)
    return found


@functools.cache
def _requirements(name: str) -> list[Requirement]:
    return read_lock((_REPOSITORY / "locks" / name).read_text())


@functools.cache
def _locked(name: str, python: str) -> dict[str, str]:
    """Return the locked version of each package, for a Python version on this project's hosts."""
    return {
        canonicalize_name(requirement.name): next(iter(requirement.specifier)).version
        for requirement in _requirements(name)
        if requirement.marker is None or requirement.marker.evaluate(_environment(python))
    }


def _environment(python: str, extra: str = "") -> dict[str, str]:
    return {
        "python_version": python,
        "python_full_version": f"{python}.5",
        "platform_machine": "x86_64",
        "sys_platform": "linux",
        "platform_python_implementation": "CPython",
        "extra": extra,
    }


@functools.cache
def _declared() -> list[Requirement]:
    return [Requirement(line) for line in requires("gpu-node-harness") or ()]


def _asked(extras: tuple[str, ...], python: str) -> list[Requirement]:
    """Return the package's requirements for `extras` alone; "" means those without an extra."""
    return [
        requirement
        for requirement in _declared()
        if any(_is_of(requirement, extra, python) for extra in extras)
    ]


def _is_of(requirement: Requirement, extra: str, python: str) -> bool:
    if requirement.marker is None:
        return extra == ""
    return requirement.marker.evaluate(_environment(python, extra)) and (
        extra == "" or not requirement.marker.evaluate(_environment(python))
    )


@pytest.mark.parametrize("python", _PYTHONS)
@pytest.mark.parametrize("name", _LOCKS)
def test_lock_file_meets_the_requirements_of_the_package(name: str, python: str) -> None:
    locked = _locked(name, python)
    asked = [each for each in _asked(_LOCKS[name], python) if each.name != "gpu-node-harness"]

    assert asked
    assert [
        str(requirement)
        for requirement in asked
        if (version := locked.get(canonicalize_name(requirement.name))) is None
        or version not in requirement.specifier
    ] == [], "Run `./dev lock`."


def test_every_lock_file_has_a_test() -> None:
    assert {path.name for path in (_REPOSITORY / "locks").iterdir()} == set(_LOCKS)


@pytest.mark.parametrize("python", _PYTHONS)
def test_wheel_lock_has_the_same_versions_as_the_dev_lock(python: str) -> None:
    dev = _locked("dev.txt", python)

    assert _locked("wheel.txt", python).items() <= dev.items()


def test_build_requires_the_locked_version_of_setuptools() -> None:
    (asked,) = [each for each in _asked(("dev",), "3.12") if each.name == "setuptools"]
    text = (_REPOSITORY / "pyproject.toml").read_text()

    assert f'requires = ["setuptools{asked.specifier}"]' in text


def test_lock_file_that_does_not_pin_exact_files_is_refused() -> None:
    accepted = []
    for text in (
        "--index-url https://example.org/simple\n",
        "--extra-index-url https://example.org/simple\n",
        "--trusted-host example.org\n",
        "--find-links /opt/wheels\n",
        "-e .\n",
        "jq @ https://example.org/jq-1-py3-none-any.whl --hash=sha256:" + "0" * 64,
        "jq==1 --hash=sha256:" + "0" * 64 + " # from https://example.org/simple\n",
        "jq==1\n",
        "jq==1 --hash=md5:" + "0" * 32,
        "jq>=1 --hash=sha256:" + "0" * 64,
        "jq==1.* --hash=sha256:" + "0" * 64,
        "jq --hash=sha256:" + "0" * 64,
    ):
        with contextlib.suppress(LockError):
            accepted.append((text, read_lock(text)))

    assert accepted == []


def test_digests_and_markers_of_a_requirement_are_read() -> None:
    digest = f"    --hash=sha256:{'0' * 64}"
    text = (
        f"# a comment\njq==1.2 ; python_version < '3.11' \\\n{digest} \\\n{digest}\n    # via jo\n"
    )

    (requirement,) = read_lock(text)

    assert (requirement.name, str(requirement.specifier)) == ("jq", "==1.2")
    assert str(requirement.marker) == 'python_version < "3.11"'
