"""The tags and size of the virtual machine, from the cached response of the metadata service."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .node_files import UnreadableFileError

if TYPE_CHECKING:
    from .node_files import NodeFiles

CACHE_PATH = "/opt/azure/containers/imds_instance_metadata_cache.json"
SKIP_DRIVER_TAG = "SkipGpuDriverInstall"
MANAGED_TAG = "EnableManagedGPUExperience"


class TagLookupError(Exception):
    """The machine's tags cannot be read from the cache."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The instance metadata that provisioning uses; a tag's value is None if it is not a string."""

    tags: tuple[tuple[str, str | None], ...] = ()
    vm_size: str | None = None

    def is_on(self, tag: str) -> bool:
        """Return whether the tag `tag` has the value `true`; upper and lower case are the same.

        The tag's whole name and whole value must match. Upstream searches name and value with
        regular expressions, so `xSkipGpuDriverInstallY=untrue` opts a node out upstream.

        Raises TagLookupError if the value of the tag is not a string.
        """
        values = [value for name, value in self.tags if name.lower() == tag.lower()]
        if None in values:
            raise TagLookupError(
                f"The tag '{tag}' in '{CACHE_PATH}' has a value that is not a string."
            )
        return any(value is not None and value.lower() == "true" for value in values)


def read_metadata(files: NodeFiles) -> Metadata:
    """Read the machine's tags and size from the cache.

    Raises TagLookupError if the cache is missing, unreadable or not in the expected form: a node
    must not guess whether it opted out.
    """
    try:
        text = files.read(CACHE_PATH)
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
