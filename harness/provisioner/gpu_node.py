"""The provisioner that comes with the harness: `harness.provisioning`, which makes a GPU node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cloudinit import GuestFile
from harness.provisioner import (
    ConfigurationFile,
    EvidenceDeclaration,
    NodeFact,
    Provisioner,
)
from harness.provisioner.outcome import (
    EventFiles,
    LogPatterns,
    OutcomeDeclaration,
    OutcomeFile,
    StepList,
)
from harness.provisioning.exit_codes import ExitCode
from harness.settings import PROVISIONER

if TYPE_CHECKING:
    from harness.payload import Payload

NAME = PROVISIONER
SOURCE = "harness.provisioning"
CONFIG_PATH = "/etc/gpu-node/config.json"
OUTCOME_PATH = "/var/lib/gpu-node/outcome.json"
PAYLOAD_FOLDER = "/opt/gpu-node"
EVENTS_FOLDER = "/var/log/azure/Microsoft.Azure.Extensions.CustomScript/events"
METADATA_CACHE = "/opt/azure/containers/imds_instance_metadata_cache.json"
_LOG_PATH = "/var/log/azure/cluster-provision.log"
#: Commands of the zipapp besides `boot`, `bake` and `teardown`, which have keys of their own.
_FURTHER_COMMANDS = ("status", "plan", "validate")

OUTCOME = OutcomeDeclaration(
    exit_codes={int(code): code.name for code in ExitCode},
    file=OutcomeFile(
        path=OUTCOME_PATH,
        exit_code="/exit_code",
        exit_name="/exit_name",
        error="/error",
        decision="/decision/action",
        reason="/decision/reason",
        steps=StepList(
            at="/steps",
            name="/name",
            status="/status",
            duration_s="/duration_s",
            detail="/detail",
            started="/started",
        ),
    ),
    # The events of Azure's agent have no field for the end time, so the operation's id contains it.
    events=EventFiles(
        path=f"{EVENTS_FOLDER}/*", name="/TaskName", started="/Timestamp", ended="/OperationId"
    ),
    log=LogPatterns(
        # The pattern finds fields by key, since the order of the fields has changed before.
        decision=r"AKS_GPU_PREBAKE (?=.*\bevent=decision\b)(?=.*\baction=(?P<decision>[^\s'\"]+))"
        r"(?=.*\breason=(?P<reason>[^\s'\"]+))",
        step=r"step (?P<name>[a-z-]+) (?P<status>done|failed) after (?P<duration_s>[0-9.]+) s",
    ),
)
EVIDENCE = EvidenceDeclaration(files=[_LOG_PATH])


def gpu_node_provisioner(payload: Payload) -> Provisioner:
    """Return the declaration of `harness.provisioning`, whose zipapp is `payload`."""
    program = f"{PAYLOAD_FOLDER}/{payload.name}"

    def command(name: str) -> tuple[str, ...]:
        return (
            *("python3", "-I", "-S", program, name),
            *("--config", CONFIG_PATH),
            *("--outcome", OUTCOME_PATH),
        )

    return Provisioner(
        name=NAME,
        source=SOURCE,
        files=[GuestFile(path=program, content=payload.content, mode=0o755)],
        folders=[PAYLOAD_FOLDER],
        run=command("boot"),
        bake=command("bake"),
        teardown=command("teardown"),
        commands={name: command(name) for name in _FURTHER_COMMANDS},
        configuration=ConfigurationFile(
            path=CONFIG_PATH,
            values={"config_gpu_driver_if_needed": True, "gpu_driver_type": "cuda-lts"},
            node_values={
                "gpu_node": NodeFact.HAS_GPUS,
                "gpu_driver_version": NodeFact.DRIVER_VERSION,
                "gpu_image_sha": NodeFact.DRIVER_SHA,
                "time_limit_multiplier": NodeFact.TIME_LIMIT_MULTIPLIER,
            },
            # These values switch prebaking on, as section 4 of the AKS interface describes.
            bake_values={"gpu_node": False, "feature_flags": "NVIDIA_CUDA_PREBAKE"},
        ),
        outcome=OUTCOME,
        evidence=EVIDENCE,
        metadata_path=METADATA_CACHE,
        bake_key=payload.digest,
    )
