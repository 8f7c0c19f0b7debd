"""The example provisioner's unit tests catch regressions that are planted in its script."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from suites.host.shell.running import REPOSITORY, outcomes
from suites.host.shell.shell_provisioner.node import SCRIPT

if TYPE_CHECKING:
    from suites.host.shell.running import SpecProject

_TESTS = Path(__file__).parent / "shell_provisioner" / "test_provision.py"
_CONFTEST = "from suites.host.shell.shell_provisioner.conftest import node\n"

#: A test that fails with none of the regressions, which shows that the script can still run.
_FINE = "test_driver_is_installed_if_there_is_no_record"


@dataclass(frozen=True, kw_only=True)
class Regression:
    """A change that breaks the script, and the test that then has to fail."""

    name: str
    before: str
    after: str
    caught_by: str


REGRESSIONS = (
    Regression(
        name="a tag counts in one case only",
        before="grep -Fixq",
        after="grep -Fxq",
        caught_by="test_tag_is_set_only_if_its_whole_name_and_value_match",
    ),
    Regression(
        name="kinds are compared without their family",
        before='[ "$(driver_family "$kind")" != "$(driver_family "$DRIVER_KIND")" ]',
        after='[ "$kind" != "$DRIVER_KIND" ]',
        caught_by="test_baked_driver_is_used_only_if_kind_and_version_and_kernel_match",
    ),
    Regression(
        name="a module that is only built counts as installed",
        before=": installed$",
        after=": (built|installed)$",
        caught_by="test_module_that_dkms_has_built_but_not_installed_is_built_again",
    ),
    Regression(
        name="an image of another registry is not tagged",
        before='ctr -n k8s.io images tag --force "$source" "$image" >/dev/null',
        after="true",
        caught_by="test_image_that_is_pulled_from_another_registry_also_gets_the_default_name",
    ),
    Regression(
        name="an image is pulled once",
        before='retry 3 5 pull_once "$source"',
        after='pull_once "$source"',
        caught_by="test_pull_is_tried_three_times",
    ),
    Regression(
        name="apt-get asks whether to go on",
        before="apt-get install -y",
        after="apt-get install",
        caught_by="test_missing_packages_are_installed_and_held",
    ),
    Regression(
        name="a baked driver that does not start is kept",
        before='log "the baked driver did not start; building it again"',
        after="return 0",
        caught_by="test_baked_driver_that_does_not_start_is_installed_again",
    ),
    Regression(
        name="modules are unloaded in the wrong order",
        before="MODULES=(nvidia_uvm nvidia_drm nvidia_modeset nvidia_peermem nvidia)",
        after="MODULES=(nvidia nvidia_peermem nvidia_modeset nvidia_drm nvidia_uvm)",
        caught_by="test_modules_are_unloaded_before_their_dependencies",
    ),
    Regression(
        name="the record goes while the driver is still there",
        before="  unload_modules\n",
        after='  unload_modules\n  rm -f "$RECORD"\n',
        caught_by="test_record_stays_until_the_driver_is_gone",
    ),
    Regression(
        name="systemd does not read the drop-in",
        before="  systemctl daemon-reload\n",
        after="",
        caught_by="test_device_plugin_flags_depend_on_the_mig_strategy",
    ),
)


@pytest.fixture
def sample(project: SpecProject) -> SpecProject:
    """Return a copy of the sample, which a test may change."""
    project.write("conftest.py", _CONFTEST)
    shutil.copy(_TESTS, project.root)
    project.write(SCRIPT, (REPOSITORY / SCRIPT).read_text())
    return project


@pytest.mark.parametrize("regression", REGRESSIONS, ids=lambda regression: regression.name)
def test_unit_tests_catch_each_planted_regression(
    sample: SpecProject, regression: Regression
) -> None:
    script = sample.root / SCRIPT
    text = script.read_text()
    assert text.count(regression.before) == 1, "The script no longer has what is to be changed."
    script.write_text(text.replace(regression.before, regression.after))

    result = sample.run("-k", f"{regression.caught_by} or {_FINE}")

    seen = {(name.partition("[")[0], outcome) for name, outcome in outcomes(result).items()}
    failed = {name for name, outcome in seen if outcome == "failed"}
    assert failed == {regression.caught_by}, result.render()
    assert (_FINE, "passed") in seen
