"""The virtual machine's tags and size, from the cached answer of the metadata service."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .root import UnreadableFileError

if TYPE_CHECKING:
    from .root import Root

CACHE_PATH = "/opt/azure/containers/imds_instance_metadata_cache.json"
SKIP_DRIVER_TAG = "SkipGpuDriverInstall"
MANAGED_TAG = "EnableManagedGPUExperience"


class TagLookupError(Exception):
    """The cache does not tell the machine's tags, so what they ask for is not known."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What provisioning reads of the instance metadata; a tag's value is None if it is no text."""

    tags: tuple[tuple[str, str | None], ...] = ()
    vm_size: str | None = None

    def is_on(self, tag: str) -> bool:
        """Tell whether a tag of this very name has the value `true`; letter case is no matter.

        A name or a value that merely contains the words says nothing (upstream matches both as
        regular expressions, so `xSkipGpuDriverInstallY=untrue` opts a node out there).

        Raises TagLookupError where the tag has a value that is no text.
        """
        values = [value for name, value in self.tags if name.lower() == tag.lower()]
        if None in values:
            raise TagLookupError(f"The tag '{tag}' in '{CACHE_PATH}' has a value that is no text.")
        return any(value is not None and value.lower() == "true" for value in values)


def read_metadata(root: Root) -> Metadata:
    """Read the cache.

    Raises TagLookupError where it is missing, unreadable or of another form: a node that cannot
    know whether it opted out must not guess.
    """
    try:
        text = root.read(CACHE_PATH)
    except UnreadableFileError as error:
        raise TagLookupError(str(error)) from error
    if text is None:
        raise TagLookupError(f"The instance metadata cache '{CACHE_PATH}' is missing.")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TagLookupError(f"'{CACHE_PATH}' is not JSON: {error}.") from error
    compute = document.get("compute") if isinstance(document, dict) else None
    listed = compute.get("tagsList") if isinstance(compute, dict) else None
    if not isinstance(compute, dict) or not isinstance(listed, list):
        raise TagLookupError(f"'{CACHE_PATH}' has no list '.compute.tagsList'.")
    tags = []
    for tag in listed:
        name = tag.get("name") if isinstance(tag, dict) else None
        if not isinstance(name, str):
            raise TagLookupError(f"'{CACHE_PATH}' has a tag without a name: {tag!r:.80}.")
        value = tag.get("value")
        tags.append((name, value if isinstance(value, str) else None))
    size = compute.get("vmSize")
    return Metadata(tags=tuple(tags), vm_size=size if isinstance(size, str) and size else None)
