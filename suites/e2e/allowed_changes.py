"""The allowed differences between the states of two nodes, or of one node at two times."""

from __future__ import annotations

from harness.api import AllowedChanges

#: The reports of each run of provisioning, which contain times.
REPORTS = AllowedChanges(
    paths=[
        *("/var/lib/gpu-node/*", "/run/gpu-node*"),
        # By this folder, the harness tells the runs apart.
        "/var/lib/cloud/instances/*/provisioner-runs/*",
    ]
)
#: What apt and containerd leave in their own folders: caches of package lists, and the remains of
#: ended containers, which containerd removes later.
TOOLS = AllowedChanges(
    paths=[
        *("/var/cache/apt/*pkgcache.bin", "/var/lib/apt/lists/auxfiles"),
        "/var/lib/containerd/io.containerd.runtime.v2.task/k8s.io",
        "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/*",
        "/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256/*",
    ]
)
