"""What provisioning has made of a node, to be compared with what one whole run makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import ExpectationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.lab.node import Node

#: Where provisioning and the driver image write, but not their logs.
_PLACES = (
    "/etc/containerd /etc/nvidia-container-runtime /etc/default /etc/ld.so.conf.d "
    "/etc/systemd/system /opt/actions /opt/azure /opt/gpu /run/cdi /usr/bin/lib64 "
    "/usr/src/nvidia-580.126.09 /var/lib/dkms/nvidia /usr/local/nvidia"
)
_FILES = (
    f"for place in {_PLACES} /usr/bin/nvidia-* /lib/modules/*/updates/dkms /dev/nvidia*; do "
    '[ -e "$place" ] || continue; '
    "find $place -printf '%p\\t%y %m %u:%g %l\\n'; "
    'find $place -type f -exec sha256sum {} + | sed "s,^\\([^ ]*\\)  \\(.*\\),\\2 (content)\\t\\1,"; '
    "done | sort -u"
)
_UNITS = (
    "for unit in containerd kubelet node-problem-detector nvidia-modprobe nvidia-device-plugin "
    "nvidia-dcgm nvidia-dcgm-exporter nvidia-cdi-refresh; do "
    "systemctl show --property=LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,"
    'Environment,DropInPaths $unit | sed "s,^\\([^=]*\\)=,unit $unit \\1\\t,"; done'
)
_CONTAINERS = (
    "for kind in images containers tasks; do "
    'ctr -n k8s.io $kind ls -q | sort | sed "s,^,containerd\'s $kind: ,;s,$,\\t,"; done'
)
_MODULES = "sed -n 's,^\\(nvidia[^ ]*\\) [0-9]* \\([0-9]*\\) .*,module \\1\\treferences \\2,p' /proc/modules"
_LIBRARIES = "ldconfig -p | sed -n 's,^\\t\\(.*lib64.*\\),linker: \\1\\t,p'"
#: What was only enqueued may still start.
_IDLE = (
    "timeout 120 sh -c 'until [ -z \"$(systemctl list-jobs --no-legend)\" ]; do sleep 0.1; done'"
)
_SHOWN = 40


def result_of(node: Node) -> Mapping[str, str]:
    """Return what is on the node, by the name of each thing."""
    script = f"{_IDLE}; {_FILES}; {_UNITS}; {_CONTAINERS}; {_MODULES}; {_LIBRARIES}"
    lines = node.guest.output_of("sh", "-euc", script, timeout_s=240).splitlines()
    return dict(line.partition("\t")[::2] for line in lines)


def expect_same(expected: Mapping[str, str], seen: Mapping[str, str]) -> None:
    """Expect a node to be as one whole run leaves it; raises ExpectationError with the difference."""
    assert expected, "The node of the whole run has nothing to compare with."
    difference = [
        *(f"missing: {name} ({expected[name]})" for name in sorted(expected.keys() - seen.keys())),
        *(f"left: {name} ({seen[name]})" for name in sorted(seen.keys() - expected.keys())),
        *(
            f"differs: {name}: '{seen[name]}' for '{expected[name]}'"
            for name in sorted(expected.keys() & seen.keys())
            if expected[name] != seen[name]
        ),
    ]
    if difference:
        raise ExpectationError(
            f"The node was expected to be as after one whole run, but {len(difference)} things are "
            "not:\n" + "\n".join(difference[:_SHOWN])
        )
