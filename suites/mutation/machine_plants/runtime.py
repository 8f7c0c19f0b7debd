"""Defects of containerd, CRI-O and CDI."""

from __future__ import annotations

from .plant import MachinePlant, corpus, plant

PLANTS: tuple[MachinePlant, ...] = (
    corpus(17, "runtime/test_refresh.py", "early or during"),
    corpus(18, "runtime/test_refresh.py", "lasting"),
    corpus(19, "runtime/test_refresh.py", "old_cdi_spec"),
    corpus(30, "runtime/test_detection.py", "without and key"),
    plant(
        "CDI stays switched off",
        "toolkit.py",
        (
            "if facts.cdi is CdiSupport.CAPABLE and facts.is_cdi_enabled:",
            "if facts.cdi is CdiSupport.CAPABLE and not facts.is_cdi_enabled:",
        ),
        "runtime/test_pods.py",
        "containerd_2",
    ),
    plant(
        "an older containerd drops the annotations that name a GPU",
        "toolkit.py",
        (
            "f\"[{render_string(LEGACY_PREFIX + '*')}]\"",
            'f"[{render_string(LEGACY_PREFIX)}]"',
        ),
        "runtime/test_pods.py",
        "debian-12 and CDI",
    ),
    plant(
        "the runtime is written in a format that containerd 2 ignores",
        "toolkit.py",
        (
            '    text = _with_format(facts.text or "")\n    cri = ',
            '    text = facts.text or "version = 2\\n"\n    cri = ',
        ),
        "runtime/test_configuration.py",
        "older_file",
    ),
    plant(
        "the device plugin starts before its environment is written",
        "services.py",
        (
            'needs=("configure-managed-services", "configure-device-plugin"),',
            'needs=("configure-managed-services",),',
        ),
        "runtime/test_configuration.py",
        "passes_devices and CDI and not without and not CRI",
    ),
    plant(
        "the unit that writes the CDI spec is configured without an event",
        "driver.py",
        ('            event=f"{_CONFIGURE_STEP}.configureNvidiaCDIRefresh",\n', ""),
        "runtime/test_refresh.py",
        "early_failures",
    ),
    plant(
        "CRI-O is not restarted after its files are written",
        "toolkit.py",
        (
            "return (drop, hook, where_loaded(CRI_O_UNIT, *start(CRI_O_UNIT, 30)))",
            "return (drop, hook)",
        ),
        "runtime/test_configuration.py",
        "CRI-O and not without",
    ),
    plant(
        "CRI-O keeps the file of an earlier mode",
        "toolkit.py",
        (
            "return (drop, hook, where_loaded(",
            "return (drop if choice is None or choice.mode else hook, where_loaded(",
        ),
        "runtime/test_configuration.py",
        "CRI-O and not without",
    ),
    plant(
        "CRI-O gets the path of the hook as the path of the runtime",
        "toolkit.py",
        (
            'f"runtime_path = {render_string(CONTAINER_RUNTIME)}\\n"',
            'f"runtime_path = {render_string(HOOK_PROGRAM)}\\n"',
        ),
        "runtime/test_configuration.py",
        "CRI-O and not without",
    ),
    plant(
        "the options of runc are not copied",
        "toolkit.py",
        ('        **values_below(text, (*runtimes, FALLBACK_RUNTIME, "options")),\n', ""),
        "runtime/test_configuration.py",
        "own and options",
    ),
    plant(
        "a CDI spec without devices counts as a spec with a GPU",
        "toolkit.py",
        ("offers_device(text, CDI_DEVICE_KIND)", "CDI_DEVICE_KIND in text"),
        "runtime/test_refresh.py",
        "without and devices",
    ),
    plant(
        "the setting for folders of CDI specs does not count as CDI support",
        "cdi.py",
        (
            'if "cdi_spec_dirs" in keys or _is_at_least(number, (2, 4, 0)):',
            "if _is_at_least(number, (2, 4, 0)):",
        ),
        "runtime/test_detection.py",
        "folders",
    ),
    plant(
        "a node with native CDI gets the annotation prefix for older runtimes",
        "cdi.py",
        (
            "    if choice.annotation_prefix == LEGACY_PREFIX:\n        environment",
            "    if choice.annotation_prefix is not None:\n        environment",
        ),
        "runtime/test_detection.py",
        "folders",
    ),
    plant(
        "only the first line of a multi-line array is read",
        "toml_text.py",
        ('            depth += (char in {"[", "{"}) - (char in {"]", "}"})\n', ""),
        "runtime/test_configuration.py",
        "imports",
    ),
    plant(
        "the early step for CDI writes no event",
        "driver.py",
        ('event=f"{_CONFIGURE_STEP}.configureNvidiaCDIRefresh",', "event=None,"),
        "runtime/test_refresh.py",
        "old_cdi_spec",
    ),
    plant(
        "validation ignores nvidia-smi",
        "driver.py",
        (
            "exit_code=_FAILED,\n                needs=(VALIDATE_PROBE,),",
            "exit_code=None,\n                needs=(VALIDATE_PROBE,),",
        ),
        "runtime/test_refresh.py",
        "validation_reports and lost",
    ),
    plant(
        "a node that opted out keeps the runtime of CRI-O",
        "boot.py",
        (
            "choice = None if facts.is_opted_out else facts.runtime.choice",
            "choice = facts.runtime.choice",
        ),
        "runtime/test_configuration.py",
        "for_cri_o",
    ),
    plant(
        "a node that opted out removes its driver before kubelet starts",
        "boot.py",
        (
            """        steps.append(
            Step(
                name="clean-up-driver",
                actions=(teardown_action(facts, scope),),
                exit_code=None,
                needs=("start-kubelet",),
                event="AKS.CSE.cleanUpGPUDrivers",
            )
        )
""",
            """        steps.insert(
            0,
            Step(
                name="clean-up-driver",
                actions=(teardown_action(facts, scope),),
                exit_code=None,
                event="AKS.CSE.cleanUpGPUDrivers",
            ),
        )
""",
        ),
        "runtime/test_configuration.py",
        "only_the_nvidia_runtime",
    ),
    plant(
        "a runtime that the user has configured is written again",
        "toolkit.py",
        (
            "    if not _has_runtime(facts):\n        text = _add",
            "    if True:\n        text = _add",
        ),
        "runtime/test_configuration.py",
        "names_the_runtime",
    ),
    plant(
        "a node that opts out gets runc in place of any default runtime",
        "toolkit.py",
        (
            "    if is_default_gone:\n        key",
            "    if True:\n        key",
        ),
        "runtime/test_configuration.py",
        "another",
    ),
    plant(
        "CRI-O gets a hook for a stage that CRI-O does not know",
        "toolkit.py",
        ('"stages": ["prestart"]', '"stages": ["prestarted"]'),
        "runtime/test_configuration.py",
        "CRI-O and without",
    ),
    plant(
        "CRI-O gets the runtime in a table that CRI-O ignores",
        "toolkit.py",
        ("[crio.runtime.runtimes.", "[crio.runtimes."),
        "runtime/test_configuration.py",
        "CRI-O and not without",
    ),
)
