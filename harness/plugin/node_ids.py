"""Node ids of tests, without what xdist appends, and as names of folders."""

from __future__ import annotations

import hashlib
import re

_XDIST_GROUP = re.compile(r"@[^@/\]]+$")
_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")
#: Node ids that give unique folder names: only `::`, `/` and brackets become '-'.
_PLAIN = re.compile(
    r"(?=.{1,150}$)[A-Za-z0-9_][A-Za-z0-9._=/-]*(::[A-Za-z0-9._=-]+)*(\[[A-Za-z0-9._=-]+\])?"
)
_NAME_LENGTH = 150


def without_group(node_id: str) -> str:
    """Return a test's node id without the group that xdist appends."""
    return _XDIST_GROUP.sub("", node_id)


def folder_name(node_id: str) -> str:
    """Turn a test's node id into a folder name, without the group that xdist appends.

    A digest is appended if the name alone might not be unique: if it was cut, or had characters
    that are special in a path or a shell.
    """
    test = without_group(node_id)
    name = _UNSAFE.sub("-", test).strip("-.")[:_NAME_LENGTH]
    if name and _PLAIN.fullmatch(test):
        return name
    digest = hashlib.sha256(test.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name}-{digest}".lstrip("-")
