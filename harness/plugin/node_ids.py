"""Removes the group (`@GROUP`) that xdist appends to node ids, and turns node ids into folder names."""

from __future__ import annotations

import hashlib
import re

from harness.visible_text import visible

_XDIST_GROUP = re.compile(r"(?<=[\w\]])@[^@/\]]+$")
_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")
_DIGEST_LENGTH = 12
_NAME_LENGTH = 140
#: Matches node ids that get unique folder names, even on a file system that ignores case. In a
#: folder name, '-' replaces `::`, `/` and brackets.
_PLAIN = re.compile(
    rf"(?=.{{1,{_NAME_LENGTH}}}$)([a-z0-9_]+/)*[a-z0-9_]+\.py::[a-z0-9_]+"
    rf"(\[(?![a-z0-9._=-]*-[0-9a-f]{{{_DIGEST_LENGTH}}}\])[a-z0-9._=-]*[a-z0-9_=]\])?"
)


def shown_id(node_id: str) -> str:
    """Return a test's node id as reports show it: without the group that xdist appends."""
    return visible(_without_group(node_id))


def _without_group(node_id: str) -> str:
    # Examples of specs have no groups, and their names may be any text.
    is_python = node_id.partition("::")[0].endswith(".py")
    return _XDIST_GROUP.sub("", node_id) if is_python else node_id


def folder_name(node_id: str, *, repeat: int = 1) -> str:
    """Turn a test's node id into a folder name, without the group that xdist appends.

    No two tests get the same folder name. A digest is appended if the name might not be unique: if
    the node id is too long, or has characters that are special in a path or a shell. If a test runs
    several times, `repeat` is the number of this run of the test.
    """
    test = _without_group(node_id)
    name = _UNSAFE.sub("-", test).strip("-.")[:_NAME_LENGTH]
    if repeat == 1 and _PLAIN.fullmatch(test):
        return name
    if repeat > 1:
        name, test = f"{name}-run-{repeat}", f"{test}\0{repeat}"
    digest = hashlib.sha256(test.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{name}-{digest}".lstrip("-")
