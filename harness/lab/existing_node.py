"""Reads an existing node, and changes nothing on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence.collect import collect_guest, keep_host_files
from harness.evidence.request import NOTHING_MORE, AdditionalEvidence, node_request
from harness.machine.existing_node import NodeRunner
from harness.provisioner.declaration import write_declaration
from harness.provisioning.command import CommandError

if TYPE_CHECKING:
    from pathlib import Path

    from harness.evidence import Evidence
    from harness.machine.existing_node import NodeAddress
    from harness.provisioner import Provisioner
    from harness.provisioning.command import Runner

_ANSWER_S = 30.0


class ExistingNode:
    """An existing node, which is only read. Its default provisioner is the provisioner of the harness."""

    def __init__(
        self,
        address: NodeAddress,
        runner: Runner | None = None,
        *,
        provisioner: Provisioner | None = None,
    ) -> None:
        self.name = address.name
        self._runner = NodeRunner(address, runner)
        self._provisioner = provisioner

    def collect(self, folder: Path, *, additional: AdditionalEvidence = NOTHING_MORE) -> Evidence:
        """Gather evidence of the node, and the `additional` evidence, into the new `folder`.

        Raises HarnessError if the node can't be reached, or if an answer is incomplete.
        """
        try:
            kernel = self._runner.run(["uname", "-r"], timeout_s=_ANSWER_S).check(
                "Asking the node"
            )
        except CommandError as error:
            raise HarnessError(str(error)) from error
        request = node_request([kernel.stdout.strip()], self._provisioner).extended(additional)
        evidence = collect_guest(self._runner, request, folder)
        if self._provisioner is not None:
            write_declaration(self._provisioner, folder)
        keep_host_files(folder, files={}, texts={})
        return evidence
