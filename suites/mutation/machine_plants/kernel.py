"""Defects of the driver: bakes, builds, retries."""

from __future__ import annotations

from .plant import MachinePlant, corpus, plant

PLANTS: tuple[MachinePlant, ...] = (
    corpus(
        21,
        "kernel/test_builds.py",
        "second_bake",
        hidden_by="The driver image also empties the folder before it stages files, as the contract says; "
        "provisioning empties the folder for an image that does not.",
    ),
    corpus(22, "kernel/test_builds.py", "does_not_work"),
    plant(
        "a loaded driver of another version is not detected",
        "driver.py",
        (
            "    resident = judge_resident_version(node, version=version)\n    return resident or judge_refusal",
            "    return judge_refusal",
        ),
        "kernel/test_builds.py",
        "another_version",
    ),
    plant(
        "a bake accepts the record of another architecture",
        "bake.py",
        ("elif record.arch != arch:", "elif record.arch is None:"),
        "kernel/test_failed_bake.py",
        "architecture",
    ),
    plant(
        "a failed bake stays in the image",
        "bake.py",
        ("    tear_down(node, teardown_scope(configuration, is_opted_out=False))", "    return"),
        "kernel/test_failed_bake.py",
        "compile",
    ),
    plant(
        "a feature flag is found inside a longer word",
        "configuration.py",
        (
            "return PREBAKE_FLAG in self.feature_flags",
            'return PREBAKE_FLAG in ",".join(self.feature_flags)',
        ),
        "kernel/test_failed_bake.py",
        "similar",
    ),
    plant(
        "a device that cannot be probed at once is not probed again",
        "driver.py",
        (
            "_UNTIL_READY = Retry(attempts=120, pause_s=5, timeout_s=25)",
            "_UNTIL_READY = Retry(attempts=1, pause_s=5, timeout_s=25)",
        ),
        "kernel/test_retries.py",
        "first_is_tried and probe",
    ),
    plant(
        "a full install has one attempt",
        "containerd.py",
        (
            "INSTALL = Retry(attempts=5, pause_s=10, timeout_s=600)",
            "INSTALL = Retry(attempts=1, pause_s=10, timeout_s=600)",
        ),
        "kernel/test_retries.py",
        "install_that",
    ),
    plant(
        "a refusal by an earlier release ends the run",
        "driver.py",
        ("    judge = partial(judge_probe, version=image.version)", "    judge = judge_probe"),
        "kernel/test_retries.py",
        "another_driver_release",
    ),
    plant(
        "a present driver that does not work is not installed",
        "driver.py",
        (
            "else replace(step, only_after_failure_of=VALIDATE_PROBE)",
            'else replace(step, only_after_failure_of="nothing")',
        ),
        "kernel/test_retries.py",
        "does_not_work",
    ),
    plant(
        "kernels are compared as text",
        "kernel_modules.py",
        (
            "return max(buildable, key=version_key, default=None)",
            "return max(buildable, default=None)",
        ),
        "kernel/test_builds.py",
        "newest",
    ),
    plant(
        "a bake without a module succeeds",
        "bake.py",
        (
            '    elif not installed_files(node.files, target):\n        problem = f"left no module for kernel {target}"\n',
            "",
        ),
        "kernel/test_failed_bake.py",
        "wrong_record and module",
    ),
    plant(
        "a bake without a record succeeds",
        "bake.py",
        ("""problem = f"left no record '{path}'\"""", "return"),
        "kernel/test_failed_bake.py",
        "absent",
    ),
    plant(
        "a failed bake removes the caches of packages",
        "bake.py",
        (
            "teardown_scope(configuration, is_opted_out=False)",
            "teardown_scope(configuration, is_opted_out=True)",
        ),
        "kernel/test_failed_bake.py",
        "absent",
    ),
    plant(
        "a bake accepts only the latest version",
        "bake.py",
        (
            '(version.get("latestVersion"), version.get("previousLatestVersion"))',
            '(version.get("latestVersion"),)',
        ),
        "kernel/test_failed_bake.py",
        "before",
    ),
    plant(
        "a bake uses the tag of another driver image",
        "bake.py",
        (
            '.rpartition("/")[2] == f"aks-gpu-{driver_type}":',
            '.rpartition("/")[2].startswith("aks-gpu-"):',
        ),
        "kernel/test_failed_bake.py",
        "type",
    ),
    plant(
        "a bake ignores the configured driver type",
        "bake.py",
        ("configuration.gpu_driver_type or DEFAULT_DRIVER_TYPE", "DEFAULT_DRIVER_TYPE"),
        "kernel/test_failed_bake.py",
        "before",
    ),
    plant(
        "a bake runs the driver image on an unsupported system",
        "bake.py",
        (
            "arch in ARM64 or family_of(node.files.read_or_empty(OS_RELEASE)) is not Family.DEBIAN:",
            "arch in ARM64:",
        ),
        "kernel/test_failed_bake.py",
        "another_distribution",
    ),
    plant(
        "the log line of a bake names the kernel of the build machine",
        "bake.py",
        ("(kernel {record.kernel})", "(kernel {node.kernel()})"),
        "kernel/test_builds.py",
        "newest",
    ),
    plant(
        "a bake is for the kernel of the build machine",
        "bake.py",
        ("newest_kernel_with_headers(node.files) or node.kernel()", "node.kernel()"),
        "kernel/test_builds.py",
        "newest",
    ),
    plant(
        "a bake removes its driver image",
        "bake.py",
        (
            "image, target, arch),\n                    ),\n",
            "image, target, arch),\n                    ),\n                    containerd.remove(image),\n",
        ),
        "kernel/test_builds.py",
        "second_bake",
    ),
    plant(
        "the driver image runs without the host's network",
        "containerd.py",
        ('            "--net-host",\n', ""),
        "kernel/test_builds.py",
        "prebuilt_module_is_loaded",
    ),
    plant(
        "the container of the driver image stays",
        "containerd.py",
        ('            "--rm",\n', ""),
        "kernel/test_builds.py",
        "prebuilt_module_is_loaded",
    ),
    plant(
        "an attempt at its time limit leaves its container, whose name later attempts need",
        "containerd.py",
        ("        cleanup=_removal(container),\n", ""),
        "kernel/test_retries.py",
        "install_that",
    ),
    plant(
        "containerd is queried once",
        "containerd.py",
        ("Retry(attempts=240, pause_s=0.1, timeout_s=1, max_timeout_s=8)", "Retry(timeout_s=1)"),
        "kernel/test_retries.py",
        "first_is_tried and containerd",
    ),
    plant(
        "a failing nvidia-smi is ignored after an install",
        "driver.py",
        (
            "actions=(query_device(replace(_UNTIL_READY, timeout_s=30)),),\n            exit_code=_FAILED,",
            "actions=(query_device(replace(_UNTIL_READY, timeout_s=30)),),\n            exit_code=None,",
        ),
        "kernel/test_retries.py",
        "lost_after",
    ),
    plant(
        "an install for an unsupported GPU is tried again",
        "driver.py",
        (
            "    return resident or judge_refusal(node, result, version=version)",
            "    return resident",
        ),
        "kernel/test_retries.py",
        "release_does_not_support and full",
    ),
    plant(
        "only an unsupported GPU ends the builds",
        "unsupported_gpu.py",
        ("return not words.can_rebuild_help", "return words.is_refusal"),
        "kernel/test_retries.py",
        "no_build_can_help",
    ),
    plant(
        "nothing is cleaned up after a failed attempt",
        "retry.py",
        ("        _clean_up(node, run)\n        if permanent", "        if permanent"),
        "kernel/test_retries.py",
        "reaches_its_time_limit",
    ),
    plant(
        "the fast path gets five attempts",
        "driver.py",
        (
            '"install-skip-build", containerd.INSTALL_ONCE)',
            '"install-skip-build", containerd.INSTALL)',
        ),
        "kernel/test_builds.py",
        "prebuilt_module_that_does_not_work",
    ),
    plant(
        "a driver is built for a GPU that the fast path found unsupported",
        "driver.py",
        (
            "again = replace(full, actions=(expect_no_refusal(image.version), *full.actions))",
            "again = full",
        ),
        "kernel/test_retries.py",
        "release_does_not_support and without",
    ),
    plant(
        "a failed full install is ignored",
        "driver.py",
        (
            "        return [full]\n",
            "        return [replace(full, exit_code=None)]\n",
        ),
        "kernel/test_builds.py",
        "headers",
    ),
    plant(
        "a build ignores a refusal by the same release",
        "unsupported_gpu.py",
        ("        if reasons:\n", "        if False:\n"),
        "kernel/test_retries.py",
        "release_does_not_support and without",
    ),
    plant(
        "a GPU has fifteen seconds to respond after the install",
        "driver.py",
        ("_UNTIL_READY = Retry(attempts=120,", "_UNTIL_READY = Retry(attempts=3,"),
        "kernel/test_retries.py",
        "attempts_that_the_contract",
    ),
    plant(
        "a present driver is probed twice",
        "driver.py",
        (
            "retry = Retry(attempts=24, pause_s=5, timeout_s=25)",
            "retry = Retry(attempts=2, pause_s=5, timeout_s=25)",
        ),
        "kernel/test_retries.py",
        "attempts_that_the_contract",
    ),
    plant(
        "an install is tried twice",
        "containerd.py",
        ("INSTALL = Retry(attempts=5,", "INSTALL = Retry(attempts=2,"),
        "kernel/test_retries.py",
        "attempts_that_the_contract",
    ),
    plant(
        "containerd has two seconds to answer",
        "containerd.py",
        ("Retry(attempts=240, pause_s=0.1", "Retry(attempts=20, pause_s=0.1"),
        "kernel/test_retries.py",
        "attempts_that_the_contract",
    ),
    plant(
        "a bake tries its build once",
        "containerd.py",
        ("BUILD = Retry(attempts=3, pause_s=10, timeout_s=600)", "BUILD = Retry(timeout_s=600)"),
        "kernel/test_builds.py",
        "second_bake",
    ),
    plant(
        "the containers of a bake and of an install have the same name",
        "containerd.py",
        ('BUILD_CONTAINER = "gpuprebuild"', 'BUILD_CONTAINER = "gpuinstall"'),
        "kernel/test_builds.py",
        "second_bake",
    ),
)
