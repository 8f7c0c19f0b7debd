#!/bin/sh
# Leaves nothing in the root file system that belongs to the host that built it, or that two
# nodes must not share; runs inside it, last.
set -eu

rm --force /etc/ssh/ssh_host_*
# The host's own, which mmdebstrap lent for the time of the build.
rm --force /etc/resolv.conf /etc/hostname
# QEMU's user network answers names here; a node without it resolves nothing.
echo 'nameserver 10.0.2.3' >/etc/resolv.conf
echo 'gpu-node' >/etc/hostname
printf '127.0.0.1 localhost\n127.0.1.1 gpu-node\n::1 localhost\n' >/etc/hosts
# Empty, not absent: systemd then makes one at the first boot without asking questions.
: >/etc/machine-id
rm --force /var/lib/dbus/machine-id
find /var/log -type f -delete
rm --recursive --force "$(dirname "$0")"
