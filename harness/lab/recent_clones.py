"""Starts a clone from the last used state without reading the state's recipes again.

Finding the checkpoint of a state means reading and validating recipes and manifests, which takes
longer than restoring a machine. So the state of the last clone is stored, with the facts on which
the state depends: the files of the harness and of the recipes, the installed packages, the
settings, this boot of the host, QEMU's command line, and the files of the image and the
checkpoint. If one of these facts has changed, the recipes and manifests are read again. Recipes
and manifests are always read for an image that was not built from the catalogue.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import secrets
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import harness
from harness.artifact_cache import MANIFEST, STAMP
from harness.artifact_cache.manifest import BOOT_ID
from harness.errors import HarnessError
from harness.foreign_files import open_plain
from harness.lab.saved_states import BuiltImageSource, describe_clone
from harness.lease import make_private_folder
from harness.limits import LimitError
from harness.provisioning.wait import Deadline
from harness.settings import name_of_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.image import Image
    from harness.lab import Lab
    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import SavedState
    from harness.machine.checkpoint.store import Checkpoint

_HOLD_S = 10.0
_DIGEST_BYTES = hashlib.sha256().digest_size


class _Found(NamedTuple):
    """The saved state for a name, and the folders of all recipes that may change this state."""

    state: SavedState
    image: Image
    checkpoint: Checkpoint
    recipe_folders: tuple[str, ...]


@contextlib.contextmanager
def recent_clone(
    lab: Lab, state: str, find: Callable[[], SavedState], *, name: str
) -> Iterator[LabMachine]:
    """Start a clone of the saved state that `find` returns, and end the clone afterwards.

    `state` is a name for the result of `find` with the lab's settings. `find` is not called if
    nothing has changed since the last clone of that name.
    """
    image = name_of_file(f"{lab.settings.images[0]}.")
    kept = lab.settings.cache / "recent-clones" / f"{state}-{image}"
    with contextlib.ExitStack() as holding:
        found = _read(lab, kept, holding)
        if found is None:
            saved_state = find()
            found = saved_state, lab.ensure_checkpoint(saved_state)
            _write(lab, kept, *found)
        folder = lab.machines.new_folder(name)
        with lab.machines.running(
            describe_clone(found[0], lab.platform, folder, found[1], name=name)
        ) as machine:
            yield machine


def _read(
    lab: Lab, kept: Path, holding: contextlib.ExitStack
) -> tuple[SavedState, Checkpoint] | None:
    """Return the last clone's state and checkpoint, or None if a fact has changed.

    The checkpoint stays in use until `holding` closes.
    """
    try:
        with open_plain(kept) as file:
            written = os.fstat(file.fileno())
            content = file.read()
        # A file of the harness may vanish meanwhile, for example a temporary file of an editor.
        current = _facts(lab)
    except (OSError, LimitError):
        return None
    if written.st_uid != os.geteuid() or written.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return None
    digest, pickled = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(current + pickled).digest() != digest:
        return None
    # Unpickling is safe: no other user could write these bytes, and the digest shows that the harness has
    # not changed since.
    found: _Found
    found, facts = pickle.loads(pickled)  # noqa: S301
    with contextlib.ExitStack() as attempt:
        try:
            deadline = Deadline.after(_HOLD_S)
            attempt.enter_context(lab.checkpoints.hold(found.checkpoint, deadline=deadline))
            lab.store.cache.use(found.image.folder)
            if _facts_of(lab, found) != facts:
                return None
        except (HarnessError, OSError):
            return None
        holding.push(attempt.pop_all())
    return found.state, found.checkpoint


def _write(lab: Lab, kept: Path, state: SavedState, checkpoint: Checkpoint) -> None:
    """Store the state of a clone. A failure raises nothing, but the next clone takes longer."""
    source, folders = state.origin, _recipe_folders(lab)
    if folders is None or not isinstance(source, BuiltImageSource):
        return
    if source.image.parent is not None:
        # A provisioner made the image, and the provisioner's files may be in any folder.
        return
    # A clone does not need `make`, which can't be pickled unless a module defines it.
    made = replace(state, parent=None, make=None, parts={})
    found = _Found(made, source.image, checkpoint, folders)
    with contextlib.suppress(HarnessError, OSError):
        pickled = pickle.dumps((found, _facts_of(lab, found)))
        make_private_folder(kept.parent)
        new = kept.with_name(f".{kept.name}.{secrets.token_hex(4)}")
        new.touch(mode=0o600)
        new.write_bytes(hashlib.sha256(_facts(lab) + pickled).digest() + pickled)
        new.rename(kept)


def _recipe_folders(lab: Lab) -> tuple[str, ...] | None:
    """Return the catalogue's folders, or None if a file of the image's recipe is elsewhere."""
    from harness.image.catalogue import Recipe, load_catalogue  # noqa: PLC0415 - loads slowly

    catalogue = load_catalogue(*lab.settings.image_folders)
    recipe = catalogue.get(lab.settings.images[0])
    while isinstance(recipe, Recipe):
        base = recipe.file.extends
        if base is None:
            return tuple(str(folder.resolve()) for folder in catalogue.folders)
        if base not in catalogue.files:
            # The base recipe is named by its path.
            return None
        recipe = catalogue.read(base)
    return None


def _facts(lab: Lab) -> bytes:
    """Return the facts, besides the recipes, that decide which image and state are found."""
    facts = (
        BOOT_ID.read_text(),
        sys.version,
        lab.settings,
        lab.agent_program.digest,
        # Installing or removing a package may change the recipes.
        [_inode(Path(place)) for place in sys.path],
        sorted(_files_below(str(Path(harness.__file__).parent))),
    )
    return repr(facts).encode()


def _facts_of(lab: Lab, found: _Found) -> object:
    """Return the facts about recipes, QEMU, image and checkpoint on which a clone depends."""
    clone = describe_clone(found.state, lab.platform, Path("/"), found.checkpoint)
    image = found.image
    files = [image.folder / MANIFEST, image.folder / STAMP, image.disk]
    for kernel in image.kernels:
        files += [kernel.vmlinuz, kernel.initrd]
    checkpoint: Checkpoint | None = found.checkpoint
    while checkpoint is not None:
        folder = checkpoint.folder
        files += [folder / MANIFEST, folder / STAMP]
        files += [checkpoint.ram, checkpoint.state, checkpoint.disk]
        checkpoint = checkpoint.parent
    return (
        [sorted(_files_below(folder)) for folder in found.recipe_folders],
        repr(lab.driver.state_parts(clone.spec)),
        [_inode(file) for file in files],
    )


def _inode(file: Path) -> tuple[str, list[int]]:
    try:
        stat = file.stat()
    except OSError:
        return str(file), []
    return str(file), [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _files_below(folder: str) -> Iterator[tuple[str, int]]:
    """Yield path and ctime of each file except byte code. A change of mode also sets the ctime."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == "__pycache__":
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(entry.path)
            else:
                yield entry.path, entry.stat(follow_symlinks=False).st_ctime_ns
