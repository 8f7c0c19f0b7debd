"""Defects of units: base services, monitoring, owners of the GPUs, MIG."""

from __future__ import annotations

from .plant import MachinePlant, corpus, plant

PLANTS: tuple[MachinePlant, ...] = (
    corpus(26, "services/test_gpu_owners.py", "contains"),
    plant(
        "the device plugin is not awaited",
        "services.py",
        (
            "            actions=start(DEVICE_PLUGIN, START_LIMIT_S),",
            '            actions=enqueue(DEVICE_PLUGIN, START_LIMIT_S, "late"),',
        ),
        "services/test_gpu_owners.py",
        "device_plugin",
    ),
    plant(
        "monitoring is awaited",
        "systemd.py",
        (
            'argv=("systemctl", "restart", "--no-block", unit),',
            'argv=("systemctl", "restart", unit),',
        ),
        "services/test_monitoring.py",
        "slow or hanging",
    ),
    plant(
        "files can be read by root alone",
        "node_files.py",
        ("os.fchmod(file.fileno(), mode)", "pass"),
        "services/test_configuration.py",
        "readable_for_all",
    ),
    plant(
        "a profile makes an instance too few",
        "mig.py",
        ('"MIG1g": "19,19,19,19,19,19,19"', '"MIG1g": "19,19,19,19,19,19"'),
        "services/test_mig.py",
        "MIG1g",
    ),
    plant(
        "a GPU whose MIG mode is pending gets no reboot",
        "mig.py",
        ('modes != {"Enabled"}', "not modes"),
        "services/test_mig.py",
        "reboot",
    ),
    plant(
        "a node problem detector that fails keeps the node from getting ready",
        "driver.py",
        (
            '            exit_code=None,\n            needs=("start-containerd",),',
            '            exit_code=_FAILED,\n            needs=("start-containerd",),',
        ),
        "services/test_base_units.py",
        "detector and failing",
    ),
    plant(
        "the DRA driver gets a name that Kubernetes does not have",
        "facts.py",
        (
            'node_name=(node.answer("uname", "-n") or "").lower(),',
            'node_name=node.answer("uname", "-n") or "",',
        ),
        "services/test_gpu_owners.py",
        "dra_driver_starts",
    ),
    plant(
        "a unit that was started stays disabled",
        "systemd.py",
        ('        Run(argv=("systemctl", "enable", unit), retry=ENABLE),\n', ""),
        "services/test_base_units.py",
        "are_enabled",
    ),
    plant(
        "the DRA driver goes on where it is switched off",
        "services.py",
        (
            "UNITS = (DEVICE_PLUGIN, DRA_DRIVER, DCGM, DCGM_EXPORTER)",
            "UNITS = (DEVICE_PLUGIN, DCGM, DCGM_EXPORTER)",
        ),
        "services/test_configuration.py",
        "earlier_mode",
    ),
    plant(
        "a file of the user becomes readable for all",
        "services.py",
        (
            "node.files.rewrite(KUBELET_DEFAULTS, labelled)",
            "node.files.write(KUBELET_DEFAULTS, labelled)",
        ),
        "services/test_configuration.py",
        "owner_and_mode",
    ),
    plant(
        "a GPU that takes its time is not partitioned",
        "mig.py",
        ("START_LIMIT_S = 300.0", "START_LIMIT_S = 3.0"),
        "services/test_mig.py",
        "slow_gpu",
    ),
    plant(
        "a command that takes too long goes on",
        "command.py",
        (
            "                start_new_session=True,\n            )\n        except OSError as error:",
            "            )\n        except OSError as error:",
        ),
        "services/test_base_units.py",
        "kubelet_that_never_starts and hanging",
    ),
    plant(
        "a unit starts as systemd had loaded it before",
        "systemd.py",
        (
            '        reload_units(),\n        Run(\n            argv=("systemctl", "restart", unit),',
            '        Run(\n            argv=("systemctl", "restart", unit),',
        ),
        "services/test_configuration.py",
        "tells and Mixed",
    ),
    plant(
        "the device plugin of a GPU that is not partitioned gets a strategy",
        "services.py",
        (
            "if configuration.mig_node:",
            "if configuration.nvidia_mig_strategy is not None:",
        ),
        "services/test_configuration.py",
        "options_of",
    ),
    plant(
        "at the next boot the device plugin does not wait for the partition",
        "mig.py",
        ('        "Before=nvidia-device-plugin.service\\n"\n', ""),
        "services/test_configuration.py",
        "tells and Mixed",
    ),
    plant(
        "at the next boot the GPU is partitioned before its driver is loaded",
        "mig.py",
        ('        "After=nvidia-modprobe.service\\n"\n', ""),
        "services/test_configuration.py",
        "tells and Mixed",
    ),
    plant(
        "the output of the exporter goes where its unit says",
        "services.py",
        ('        "StandardOutput=journal\\n"\n', ""),
        "services/test_configuration.py",
        "options_of",
    ),
    plant(
        "the unit that partitions is not told the layout",
        "mig.py",
        ("""        f'Environment="NVIDIA_MIG_PROFILE_LAYOUT={layout}"\\n'\n""", ""),
        "services/test_configuration.py",
        "tells and Mixed",
    ),
    plant(
        "a GPU is partitioned without an event",
        "mig.py",
        ('        event="AKS.CSE.ensureMigPartition",\n', ""),
        "services/test_configuration.py",
        "tells and Mixed",
    ),
    plant(
        "a failed daemon-reload ends the run",
        "systemd.py",
        (
            "retry=Retry(timeout_s=25), is_optional=True)\n\n\ndef start",
            "retry=Retry(timeout_s=25))\n\n\ndef start",
        ),
        "services/test_base_units.py",
        "are_enabled",
    ),
    plant(
        "the DRA driver needs the package of the device plugin",
        "services.py",
        ("(*MONITORING_PACKAGES, self.value)", "(*MONITORING_PACKAGES, DEVICE_PLUGIN)"),
        "services/test_gpu_owners.py",
        "dra_driver_starts",
    ),
    plant(
        "the DRA driver starts without kubelet at the next boot",
        "services.py",
        (
            '"Requires=kubelet.service\\n"\n        "After=kubelet.service\\n"\n',
            '""\n',
        ),
        "services/test_gpu_owners.py",
        "dra_driver_starts",
    ),
    plant(
        "the DRA driver starts without an event",
        "services.py",
        (
            'needs=("configure-managed-services", "start-kubelet"),\n        event=event,\n',
            'needs=("configure-managed-services", "start-kubelet"),\n',
        ),
        "services/test_gpu_owners.py",
        "dra_driver_starts",
    ),
    plant(
        "a node that changes its mode keeps the service of the earlier one",
        "services.py",
        ("        stop_other,\n        Step(", "        Step("),
        "services/test_gpu_owners.py",
        "changes_its_mode and DRA",
    ),
    plant(
        "packages have one attempt",
        "services.py",
        ("APT = Retry(attempts=10, pause_s=2, timeout_s=300)", "APT = Retry(timeout_s=300)"),
        "services/test_monitoring.py",
        "absent",
    ),
    plant(
        "packages in the downloads of a cache are not found",
        "services.py",
        (
            'for directory in (f"/opt/{package}", f"/opt/{package}/downloads")',
            'for directory in (f"/opt/{package}",)',
        ),
        "services/test_monitoring.py",
        "absent",
    ),
    plant(
        "the reboot does not wait for the DRA driver",
        "mig.py",
        ('needs=("start-kubelet", "start-dra-driver"),', 'needs=("start-kubelet",),'),
        "services/test_mig.py",
        "reboot and DRA",
    ),
    plant(
        "a missing device plugin is no reason to install its package",
        "services.py",
        ("units = (mode.unit, DCGM, DCGM_EXPORTER)", "units = (DCGM, DCGM_EXPORTER)"),
        "services/test_gpu_owners.py",
        "device_plugin and absent",
    ),
    plant(
        "services of an earlier mode stop without an event",
        "services.py",
        ('        event=f"AKS.CSE.stop.{unit}",\n', ""),
        "services/test_configuration.py",
        "earlier_mode",
    ),
    plant(
        "the fabric manager starts without an event",
        "boot.py",
        ("            needs=needs,\n            event=event,\n", "            needs=needs,\n"),
        "services/test_base_units.py",
        "needed_fabric_manager_holds",
    ),
    plant(
        "the fabric manager stops without an event",
        "boot.py",
        (
            "        exit_code=None,\n        needs=needs,\n        event=event,\n",
            "        exit_code=None,\n        needs=needs,\n",
        ),
        "services/test_base_units.py",
        "not_needed and running",
    ),
    plant(
        "a failed step leaves no event",
        "executor.py",
        (
            "        if step.event is not None:",
            "        if step.event is not None and error is None:",
        ),
        "services/test_base_units.py",
        "needed_fabric_manager_that_never_starts and failing",
    ),
)
