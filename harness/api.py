"""The public names for tests, conftests and plug-ins in Python.

The names in this module change only as `docs/public-interface.md` says. Every other module of
`harness`, except `harness.expect` and `harness.shell.testing`, is private: its names may change in
any release.
"""

from __future__ import annotations

from harness.cloudinit import GuestFile
from harness.errors import BadInputError, ExpectationError, HarnessError, RequirementError
from harness.evidence import RECORD_PATH, Evidence
from harness.evidence.node_state import DkmsBuild, LoadedModule, PathStat, PciFunction
from harness.evidence.outcome import ProvisioningOutcome, ReportedStep
from harness.evidence.request import AdditionalEvidence
from harness.evidence.state import NodeState, PathState, StateKind
from harness.evidence.state_diff import CHANGES_OF_INSTANCES, AllowedChanges
from harness.evidence.units import ShownUnit, unit_commands
from harness.expect.every_node import NodeExpectation
from harness.expect.failure import failure, require
from harness.fixtures.machines import BootCloudImage, BootNode
from harness.fixtures.saved_states import CloneState, saved_state
from harness.gpu import GpuModel, GpuNode
from harness.gpu.catalogue import Catalogue as GpuCatalogue
from harness.gpu.catalogue import load_catalogue as load_gpu_catalogue
from harness.gpu.emulated import EmulatedGpu
from harness.gpu.passthrough import GpuChoice
from harness.gpu.script import GpuScript
from harness.image import CloudImage, DriverImage, FirmwareType, Image, Kernel
from harness.image.own_kernel import KernelFiles, KernelPackages
from harness.lab import Lab
from harness.lab.bakes import bake_cloud_image, bake_evidence
from harness.lab.boot_loader import boot_once
from harness.lab.call_recorder import CallRecorder, RecordedCall
from harness.lab.cloud_images import CloudImageBoot
from harness.lab.existing_node import ExistingNode
from harness.lab.machine import LabMachine
from harness.lab.node import Node
from harness.lab.node_request import NodeRequest
from harness.lab.registry import Registry, driver_archive
from harness.lab.saved_states import SavedState
from harness.lab.vm_drivers import DriverOpener
from harness.machine import Machine, VmDriver
from harness.machine.channels.guest import Guest
from harness.machine.description.spec import HostPort
from harness.progress import ProgressEvent
from harness.provisioner import (
    ConfigurationFile,
    ConfigurationFormat,
    EvidenceDeclaration,
    NodeFact,
    Provisioner,
)
from harness.provisioner.outcome import (
    EventFiles,
    EventFormat,
    LogPatterns,
    OutcomeDeclaration,
    OutcomeFile,
    StepList,
)
from harness.provisioner.yaml_file import read_provisioner
from harness.provisioning.command import Argv, CommandResult, Runner
from harness.provisioning.wait import Deadline
from harness.registry import Pull, PullFault, RegistryLog, RegistryRequest
from harness.settings import MachineStart, Settings
from harness.shell.mocks.scripted_runner import ScriptedRunner
from harness.shell.testing import Shell

__all__ = [
    "CHANGES_OF_INSTANCES",
    "RECORD_PATH",
    "AdditionalEvidence",
    "AllowedChanges",
    "Argv",
    "BadInputError",
    "BootCloudImage",
    "BootNode",
    "CallRecorder",
    "CloneState",
    "CloudImage",
    "CloudImageBoot",
    "CommandResult",
    "ConfigurationFile",
    "ConfigurationFormat",
    "Deadline",
    "DkmsBuild",
    "DriverImage",
    "DriverOpener",
    "EmulatedGpu",
    "EventFiles",
    "EventFormat",
    "Evidence",
    "EvidenceDeclaration",
    "ExistingNode",
    "ExpectationError",
    "FirmwareType",
    "GpuCatalogue",
    "GpuChoice",
    "GpuModel",
    "GpuNode",
    "GpuScript",
    "Guest",
    "GuestFile",
    "HarnessError",
    "HostPort",
    "Image",
    "Kernel",
    "KernelFiles",
    "KernelPackages",
    "Lab",
    "LabMachine",
    "LoadedModule",
    "LogPatterns",
    "Machine",
    "MachineStart",
    "Node",
    "NodeExpectation",
    "NodeFact",
    "NodeRequest",
    "NodeState",
    "OutcomeDeclaration",
    "OutcomeFile",
    "PathStat",
    "PathState",
    "PciFunction",
    "ProgressEvent",
    "Provisioner",
    "ProvisioningOutcome",
    "Pull",
    "PullFault",
    "RecordedCall",
    "Registry",
    "RegistryLog",
    "RegistryRequest",
    "ReportedStep",
    "RequirementError",
    "Runner",
    "SavedState",
    "ScriptedRunner",
    "Settings",
    "Shell",
    "ShownUnit",
    "StateKind",
    "StepList",
    "VmDriver",
    "bake_cloud_image",
    "bake_evidence",
    "boot_once",
    "driver_archive",
    "failure",
    "load_gpu_catalogue",
    "read_provisioner",
    "require",
    "saved_state",
    "unit_commands",
]
