"""Reads what cloud-init would write from the user-data of a machine."""

from __future__ import annotations

import base64
import gzip
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def content_of(written: Mapping[str, str]) -> bytes:
    """Decode the content of an entry of `write_files`."""
    content = base64.b64decode(written["content"], validate=True)
    return gzip.decompress(content) if written["encoding"] == "gz+b64" else content
