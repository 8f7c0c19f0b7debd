"""What may differ between the states of two nodes, or of one node at two times."""

from __future__ import annotations

from harness.api import AllowedChanges

#: What each run of provisioning reports, with times.
REPORTS = AllowedChanges(
    paths=[
        *("/var/lib/gpu-node/*", "/run/gpu-node*"),
        # The harness tells the runs apart by it.
        "/var/lib/cloud/instances/*/provisioner-runs/*",
    ]
)
#: What apt and containerd leave in folders of their own: caches of lists, and of containers that have
#: ended, which containerd removes when it finds the time.
TOOLS = AllowedChanges(
    paths=[
        *("/var/cache/apt/*pkgcache.bin", "/var/lib/apt/lists/auxfiles"),
        "/var/lib/containerd/io.containerd.runtime.v2.task/k8s.io",
        "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/*",
        "/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256/*",
    ]
)
