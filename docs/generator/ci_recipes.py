"""Generates the recipes of `docs/ci/`, which run shards and merge their reports on each CI engine.

Each common part of the recipes is defined only once. `python -m docs.generator` writes the recipes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "docs/ci"

_SHARDS = 3
_STORE = "registry.example/team/nodes"
_PYTHON = "python:3.12"
_INSTALL = "pip install 'gpu-node-harness'"
_PACKAGES = (
    "apt-get update -qq && apt-get install -y -qq --no-install-recommends qemu-system-x86 qemu-utils "
    "mmdebstrap openssh-client e2fsprogs util-linux"
)
_KVM_RULE = """\
echo 'KERNEL=="kvm", MODE="0666"' | sudo tee /etc/udev/rules.d/99-kvm.rules
sudo udevadm control --reload-rules
sudo udevadm trigger --name-match=kvm
"""
#: For each GitHub action, the commit that runs, and the release of this commit.
_ACTIONS = {
    "actions/checkout": ("11bd71901bbe5b1630ceea73d27597364c9af683", "v4.2.2"),
    "actions/download-artifact": ("d3f86a106a0bac45b974a628896c90dbdf5c8093", "v4.3.0"),
    "actions/upload-artifact": ("ea165f8d65b6e75b540449e92b4886f43607fa02", "v4.6.2"),
}
_HEAD = """\
# Runs the tests of nodes in shards, and merges their reports. Written by `python -m docs.generator`;
# docs/ci.md says what to change.
"""


_GPU_HEAD = """\
# Runs the tests of nodes on the GPUs of a host each night, and compares their durations with earlier nights.
# Written by `python -m docs.generator`; docs/gpu-lab.md says how to prepare the host.
"""
_NIGHT_MINUTES = 360
#: This folder is outside the checkout, so that the durations of earlier nights are kept.
_LAB_EVIDENCE = "/var/lib/gpu-lab/evidence"
_GPU_TESTS = f"/srv/gpu-node-harness/.venv/bin/tox -e passthrough -- --evidence-dir={_LAB_EVIDENCE} --junitxml=junit.xml"
#: Prints the durations of the steps in the last nights.
_NIGHTS = f"tail -n 200 {_LAB_EVIDENCE}/nights/$(hostname).jsonl"
#: Restores the earlier drivers of GPUs that a killed run left bound to VFIO.
_RESTORE = "/srv/gpu-node-harness/.venv/bin/harness gpu host restore"


@dataclass(frozen=True)
class Variant:
    """A variant of a recipe: under KVM, or under TCG, which takes about ten times as long."""

    name: str
    accelerator: str
    minutes: int

    @property
    def has_kvm(self) -> bool:
        return self.accelerator == "kvm"

    def pytest(self, reports: str) -> str:
        """Return the command that runs a shard."""
        return (
            f"pytest tests -n 2 --accelerator={self.accelerator} --shard=auto "
            f"--report-dir={reports}"
        )


VARIANTS = (Variant("kvm", "kvm", 60), Variant("tcg", "tcg", 180))


def recipes() -> dict[str, str]:
    """Return the content of each recipe by its path in the repository."""
    found: dict[str, str] = {}
    for variant in VARIANTS:
        for name, made in (
            ("github", _github(variant)),
            ("gitlab", _gitlab(variant)),
            ("azure", _azure(variant)),
            ("buildkite", _buildkite(variant)),
            ("kubernetes", _kubernetes(variant)),
        ):
            content = _with_releases(yaml.safe_dump(made, sort_keys=False, width=120))
            found[f"{FOLDER}/{name}-{variant.name}.yml"] = _HEAD + content
        found[f"{FOLDER}/slurm-{variant.name}.sh"] = _slurm(variant)
    merge = yaml.safe_dump(_kubernetes_merge(), sort_keys=False, width=120)
    found[f"{FOLDER}/kubernetes-merge.yml"] = _HEAD + merge
    for name, made in (
        ("github", _github_gpus()),
        ("gitlab", _gitlab_gpus()),
        ("azure", _azure_gpus()),
    ):
        content = _with_releases(yaml.safe_dump(made, sort_keys=False, width=120))
        found[f"{FOLDER}/{name}-gpus.yml"] = _GPU_HEAD + content
    found[f"{FOLDER}/slurm-merge.sh"] = _SLURM_MERGE
    found[f"{FOLDER}/slurm-submit.sh"] = _SLURM_SUBMIT
    return found


def _pinned(action: str) -> str:
    commit, _ = _ACTIONS[action]
    return f"{action}@{commit}"


def _with_releases(content: str) -> str:
    """Add a comment with the release to each action, since `yaml.safe_dump` writes no comments."""
    for action, (_, release) in _ACTIONS.items():
        content = content.replace(_pinned(action), f"{_pinned(action)} # {release}")
    return content


def _github_gpus() -> Mapping[str, Any]:
    return {
        "name": "gpus",
        "on": {"schedule": [{"cron": "30 1 * * *"}], "workflow_dispatch": None},
        "permissions": {"contents": "read"},
        # Without this group, a second run would wait for the GPUs of the first run.
        "concurrency": {"group": "gpus", "cancel-in-progress": False},
        "jobs": {
            "night": {
                "runs-on": ["self-hosted", "gpu-lab"],
                "timeout-minutes": _NIGHT_MINUTES,
                "env": {"CI": "true"},
                "steps": [
                    {"uses": _pinned("actions/checkout")},
                    {"run": _GPU_TESTS},
                    {"if": "always()", "run": f'{_NIGHTS} >>"$GITHUB_STEP_SUMMARY"'},
                    {"if": "always()", "run": _RESTORE},
                    {
                        "uses": _pinned("actions/upload-artifact"),
                        "if": "always()",
                        "with": {"name": "night", "path": "junit.xml"},
                    },
                ],
            }
        },
    }


def _gitlab_gpus() -> Mapping[str, Any]:
    return {
        "night": {
            "rules": [{"if": '$CI_PIPELINE_SOURCE == "schedule"'}],
            # The runner needs the executor `shell`, since the job uses GPUs of the host.
            "tags": ["gpu-lab"],
            "resource_group": "gpu-lab",
            "timeout": f"{_NIGHT_MINUTES} minutes",
            "script": [_GPU_TESTS],
            "after_script": [_NIGHTS, _RESTORE],
            "artifacts": {
                "when": "always",
                "paths": ["junit.xml"],
                "reports": {"junit": "junit.xml"},
            },
        }
    }


def _azure_gpus() -> Mapping[str, Any]:
    return {
        "trigger": "none",
        "pr": "none",
        "schedules": [
            {
                "cron": "30 1 * * *",
                "displayName": "each night",
                "branches": {"include": ["main"]},
                "always": "true",
            }
        ],
        "pool": {"name": "gpu-lab"},
        "variables": {"CI": "true"},
        "jobs": [
            {
                "job": "night",
                "timeoutInMinutes": str(_NIGHT_MINUTES),
                "steps": [
                    {"script": _GPU_TESTS},
                    {
                        "script": f"{_NIGHTS} >nights.md\n"
                        'echo "##vso[task.uploadsummary]$PWD/nights.md"',
                        "condition": "always()",
                    },
                    {"script": _RESTORE, "condition": "always()"},
                    {
                        "task": "PublishTestResults@2",
                        "inputs": {"testResultsFiles": "junit.xml"},
                        "condition": "always()",
                    },
                ],
            }
        ],
    }


def _github(variant: Variant) -> Mapping[str, Any]:
    kvm = [{"name": "Let the user open /dev/kvm", "run": _KVM_RULE}] if variant.has_kvm else []
    return {
        "name": "nodes",
        "on": {"push": {"branches": ["main"]}, "pull_request": None},
        "permissions": {"contents": "read", "packages": "read"},
        "jobs": {
            "shard": {
                "runs-on": "ubuntu-24.04",
                "timeout-minutes": variant.minutes,
                "strategy": {"fail-fast": False, "matrix": {"shard": list(range(_SHARDS))}},
                "env": {
                    "HARNESS_SHARD_INDEX": "${{ strategy.job-index }}",
                    "HARNESS_SHARD_COUNT": "${{ strategy.job-total }}",
                    "HARNESS_STORE": _STORE,
                },
                "steps": [
                    {"uses": _pinned("actions/checkout")},
                    *kvm,
                    {"run": f"sudo sh -c '{_PACKAGES}'"},
                    {"run": _INSTALL},
                    {"run": variant.pytest("reports/${{ strategy.job-index }}")},
                    {
                        "uses": _pinned("actions/upload-artifact"),
                        "if": "always()",
                        "with": {
                            "name": "reports-${{ strategy.job-index }}",
                            "path": "reports/",
                        },
                    },
                ],
            },
            "merge": {
                "runs-on": "ubuntu-24.04",
                "needs": "shard",
                "if": "always()",
                "steps": [
                    {"uses": _pinned("actions/checkout")},
                    {"run": _INSTALL},
                    {
                        "uses": _pinned("actions/download-artifact"),
                        "with": {"path": "reports", "merge-multiple": True},
                    },
                    {"run": 'harness report merge reports --partial >>"$GITHUB_STEP_SUMMARY"'},
                    {
                        "uses": _pinned("actions/upload-artifact"),
                        "if": "always()",
                        "with": {"name": "merged", "path": "merged/"},
                    },
                ],
            },
        },
    }


def _gitlab(variant: Variant) -> Mapping[str, Any]:
    return {
        "default": {"image": _PYTHON, "before_script": [_INSTALL]},
        "stages": ["shards", "merge"],
        "shard": {
            "stage": "shards",
            "parallel": _SHARDS,
            "timeout": f"{variant.minutes} minutes",
            **({"tags": ["kvm"]} if variant.has_kvm else {}),
            "variables": {"HARNESS_STORE": _STORE},
            "script": [_PACKAGES, variant.pytest("reports/$CI_NODE_INDEX")],
            "artifacts": {"when": "always", "paths": ["reports/"]},
        },
        "merge": {
            "stage": "merge",
            "when": "always",
            "script": ["harness report merge reports --partial"],
            "artifacts": {
                "when": "always",
                "paths": ["merged/"],
                "reports": {"junit": "merged/junit.xml"},
            },
        },
    }


def _azure(variant: Variant) -> Mapping[str, Any]:
    kvm = (
        [{"script": _KVM_RULE, "displayName": "Let the user open /dev/kvm"}]
        if variant.has_kvm
        else []
    )
    return {
        "pool": {"vmImage": "ubuntu-24.04"},
        "variables": {"CI": "true", "HARNESS_STORE": _STORE},
        "jobs": [
            {
                "job": "shard",
                "timeoutInMinutes": str(variant.minutes),
                "strategy": {"parallel": str(_SHARDS)},
                "steps": [
                    *kvm,
                    {"script": f"sudo sh -c '{_PACKAGES}'"},
                    {"script": _INSTALL},
                    {"script": variant.pytest("reports/$(System.JobPositionInPhase)")},
                    {
                        "publish": "reports",
                        "artifact": "reports-$(System.JobPositionInPhase)",
                        "condition": "always()",
                    },
                ],
            },
            {
                "job": "merge",
                "dependsOn": ["shard"],
                "condition": "always()",
                "steps": [
                    {"script": _INSTALL},
                    {"download": "current", "patterns": "reports-*/**"},
                    {
                        "script": "harness report merge $(Pipeline.Workspace)/reports-* --partial\n"
                        'echo "##vso[task.uploadsummary]$PWD/merged/summary.md"'
                    },
                    {"publish": "merged", "artifact": "merged", "condition": "always()"},
                ],
            },
        ],
    }


def _buildkite(variant: Variant) -> Mapping[str, Any]:
    agents = {"agents": {"kvm": "true"}} if variant.has_kvm else {}
    return {
        "env": {"HARNESS_STORE": _STORE},
        "steps": [
            {
                "label": "shard %n",
                "parallelism": _SHARDS,
                "timeout_in_minutes": variant.minutes,
                **agents,
                "commands": [_INSTALL, variant.pytest("reports/$$BUILDKITE_PARALLEL_JOB")],
                "artifact_paths": ["reports/**/*"],
            },
            {"wait": None, "continue_on_failure": True},
            {
                "label": "merge",
                "commands": [
                    _INSTALL,
                    'buildkite-agent artifact download "reports/**/*" .',
                    "harness report merge reports --partial | buildkite-agent annotate",
                ],
                "artifact_paths": ["merged/**/*"],
            },
        ],
    }


def _pod(resources: Mapping[str, Any], command: str, env: Mapping[str, str]) -> dict[str, Any]:
    return {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "tests",
                # This image must contain the project, Python, the harness, QEMU and mmdebstrap.
                "image": "registry.example/team/node-tests:1",
                "command": ["sh", "-c", command],
                "env": [{"name": name, "value": value} for name, value in env.items()],
                "resources": {"limits": dict(resources), "requests": dict(resources)},
                "volumeMounts": [{"name": "reports", "mountPath": "/reports"}],
            }
        ],
        # The volume needs the access mode ReadWriteMany.
        "volumes": [{"name": "reports", "persistentVolumeClaim": {"claimName": "reports"}}],
    }


def _kubernetes(variant: Variant) -> Mapping[str, Any]:
    resources: dict[str, Any] = {"cpu": "4", "memory": "12Gi"}
    if variant.has_kvm:
        # KubeVirt's device plugin provides `/dev/kvm`.
        resources |= {"devices.kubevirt.io/kvm": "1", "hugepages-2Mi": "4Gi"}
    pod = _pod(
        resources,
        variant.pytest("/reports/$JOB_COMPLETION_INDEX"),
        {"CI": "true", "HARNESS_SHARD_COUNT": str(_SHARDS), "HARNESS_STORE": _STORE},
    )
    if variant.has_kvm:
        pod["containers"][0]["volumeMounts"].append(
            {"name": "hugepages", "mountPath": "/dev/hugepages"}
        )
        pod["volumes"].append({"name": "hugepages", "emptyDir": {"medium": "HugePages"}})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "node-tests"},
        "spec": {
            "completionMode": "Indexed",
            "completions": _SHARDS,
            "parallelism": _SHARDS,
            "backoffLimitPerIndex": 1,
            # If a pod loses its Kubernetes node, no test has failed: the pod is started again.
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                    {
                        "action": "FailIndex",
                        "onExitCodes": {
                            "containerName": "tests",
                            "operator": "In",
                            "values": [1, 2, 3, 4, 5],
                        },
                    },
                ]
            },
            "activeDeadlineSeconds": variant.minutes * 60,
            "template": {"spec": pod},
        },
    }


def _kubernetes_merge() -> Mapping[str, Any]:
    command = "harness report merge /reports --partial --to /reports/merged"
    pod = _pod({"cpu": "1", "memory": "1Gi"}, command, {"CI": "true"})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "node-tests-merge"},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    }


def _slurm(variant: Variant) -> str:
    return f"""\
#!/bin/sh
# Runs one shard, as a task of an array job; docs/ci/slurm-submit.sh submits the job.
# Written by `python -m docs.generator`; docs/ci.md says what to change.
#SBATCH --job-name=node-tests
#SBATCH --requeue
#SBATCH --cpus-per-task=2
#SBATCH --mem=8G
#SBATCH --time={variant.minutes}
#SBATCH --open-mode=append
#SBATCH --output=shard-%a.log
# For tests with GPUs of the host:
##SBATCH --gres=gpu:1
# shellcheck disable=SC2086,SC2153 # unquoted variables have several words; slurm-submit.sh sets REPORTS
set -eu
reports=$REPORTS/$SLURM_ARRAY_TASK_ID
# A cancelled task gets SIGTERM: pytest then ends its machines, removes their files and writes its reports.
exec {variant.pytest('"$reports"').replace("pytest tests", "${PYTEST:-pytest} ${TESTS:-tests}").replace("-n 2 ", "${OPTIONS:--n 2} ")}
"""


_SLURM_MERGE = """\
#!/bin/sh
# Merges the reports of all shards; docs/ci/slurm-submit.sh submits this job.
# Written by `python -m docs.generator`; docs/ci.md says what to change.
#SBATCH --job-name=node-tests-merge
#SBATCH --output=merge.log
set -eu
exec ${HARNESS:-harness} report merge "$REPORTS" --partial --to "$REPORTS-merged"
"""

_SLURM_SUBMIT = """\
#!/bin/sh
# Submits the shards, and a job that merges their reports when all shards have ended, even if some failed.
# Written by `python -m docs.generator`; docs/ci.md says what to change.
#   slurm-submit.sh [SCRIPT]
# The variables SHARDS and REPORTS may be set; REPORTS is a folder that all nodes share.
set -eu
here=$(dirname "$0")
export REPORTS="${REPORTS:-$PWD/reports}"
shards=$(sbatch --parsable --array="0-$((${SHARDS:-3} - 1))" "${1:-$here/slurm-kvm.sh}")
# If a cluster is named, sbatch prints `ID;CLUSTER`.
merge=$(sbatch --parsable --dependency="afterany:${shards%%;*}" "$here/slurm-merge.sh")
echo "shards: job $shards, merge: job $merge, reports: $REPORTS-merged"
"""
