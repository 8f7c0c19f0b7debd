"""Bakes stock images: boots one, bakes the driver into it, and leaves it as new."""

from __future__ import annotations

import contextlib
import functools
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.cloudinit import CONFIG_PATH, OUTCOME_PATH, PAYLOAD_FOLDER
from harness.errors import BadInputError, HarnessError
from harness.evidence import Evidence
from harness.image import ImageEvent, Stage
from harness.image.qcow2 import flatten
from harness.lab import BAKE
from harness.lab.node import NodeRequest
from harness.lab.stock import AGENT_FILES, StockBoot
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from pathlib import Path

    from harness.image import DriverImage, Image, StockImage
    from harness.lab import Lab

_BAKE_KVM_S = 240.0
_CLEAN_KVM_S = 30.0
_FLATTEN_S = 900.0
_EVIDENCE = "evidence"

#: Leaves what a first boot makes, and what came by the seed, to the first boot of whoever has the
#: image next. `cloud-init clean --configs` came with 23.4.
_CLEAN = f"""\
set -e
cloud-init clean --logs
rm -rf /etc/netplan/50-cloud-init.yaml /etc/network/interfaces.d/50-cloud-init
rm -rf /etc/systemd/network/10-cloud-init-*.network /etc/systemd/network/50-cloud-init-*.link
rm -f /etc/ssh/ssh_host_* {CONFIG_PATH} {OUTCOME_PATH} {shlex.join(AGENT_FILES)}
rm -rf {PAYLOAD_FOLDER} /root/.ssh/authorized_keys
: >/etc/machine-id
rm -f /var/lib/dbus/machine-id /var/lib/systemd/random-seed
sync
"""


def bake_stock(lab: Lab, image: StockImage, *, driver: DriverImage | None = None) -> StockImage:
    """Return a stock image with the driver baked in, by a machine that has no GPU.

    `driver` is the one that its entry names, where it is None.
    The machine boots from an overlay by the firmware that the image asks for; provisioning comes by cloud-init. What the first
    boot and the harness left is removed again, so that the result is an image like the one that
    it was made of, which depends on no other file. `bake_evidence` reads the evidence.

    Raises BadInputError where nobody says which driver, HarnessError where the bake failed.
    """
    image = replace(image, driver=driver or image.driver)
    if image.driver is None:
        raise BadInputError(
            f"Nothing says which driver to bake into the image '{image.name}'; give its entry the "
            "key 'driver', or the command --driver.",
            source=str(image.disk),
        )
    patience = lab.accelerator.accelerator.patience
    parts = {
        "payload": lab.payload.digest,
        "config": repr(sorted(BAKE.items())),
        "driver": image.driver.reference,
        "clean": _CLEAN,
    }
    return lab.derived.bake(
        image,
        parts,
        functools.partial(_make, lab, image),
        deadline=Deadline.after(_BAKE_KVM_S * patience),
        listener=lab.listener,
    )


def bake_evidence(baked: StockImage) -> Evidence:
    """Return the evidence of the bake that made `baked`."""
    return Evidence(baked.disk.parent / _EVIDENCE)


def _make(lab: Lab, image: StockImage, disk: Path) -> None:
    boot = StockBoot()
    request = NodeRequest(name="bake", image=image, command="bake", config=BAKE, stock=boot)

    def say(line: str) -> None:
        lab.listener(ImageEvent(image=image.name, stage=Stage.BUILD, message=f"bake: {line}"))

    overlay = disk.with_name("overlay.qcow2")
    lab.store.create_overlay(image.disk, overlay, size_gib=boot.size_gib(image))
    say("booting it by its own boot loader")
    with lab.boot(request, disk=overlay) as node:
        try:
            node.wait_until_provisioned(say)
        except HarnessError as error:
            kept = lab.keep_host_side(node, "bake")
            raise HarnessError(f"{error}\nIts evidence lies in '{kept}'.") from error
        evidence = node.collect(disk.parent / _EVIDENCE)
        if evidence.exit_code != 0:
            kept = lab.keep(evidence, "bake")
            outcome = evidence.outcome
            why = "it left no outcome" if outcome is None else outcome.error
            raise HarnessError(
                f"The bake of '{image.name}' ended with {evidence.exit_code}: {why}. Its evidence "
                f"lies in '{kept}'."
            )
        say("leaving it as new")
        limit_s = node.machine.deadline(_CLEAN_KVM_S).remaining_s()
        node.guest.output_of("sh", "-c", _CLEAN, timeout_s=limit_s)
        node.power_off()
    say("writing its disk")
    flatten(overlay, disk, runner=LocalRunner(), timeout_s=_FLATTEN_S)
    overlay.unlink()


def write_alone(image: Image | StockImage, to: Path) -> Path:
    """Write an image to a place of a person's own, as a qcow2 that depends on no other file.

    Raises BadInputError where that place is taken, or can't be written.
    """
    if to.exists():
        raise BadInputError("There is such a file already.", source=str(to))
    beside = to.with_name(f".{to.name}.part")
    try:
        beside.touch(mode=0o600, exist_ok=True)
        flatten(image.disk, beside, runner=LocalRunner(), timeout_s=_FLATTEN_S)
        beside.rename(to)
    except OSError as error:
        raise BadInputError(
            f"The image could not be written there ({error.strerror}).", source=str(to)
        ) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
    return to
