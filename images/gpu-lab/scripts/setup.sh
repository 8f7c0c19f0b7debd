#!/bin/sh
# Selects the packages and the services of the lab's host; runs inside the root file system while
# the image is built.
set -eu

# Nothing is compiled on this host, and the kernel's headers depend on a compiler.
export DEBIAN_FRONTEND=noninteractive
apt-get purge --yes --quiet=2 --auto-remove 'linux-headers-*'

systemctl enable systemd-networkd.service harness-agent.service
# These services are started only on demand.
for unit in $(systemctl list-unit-files --no-legend 'libvirt*' 'virt*' | cut --delimiter=' ' --fields=1); do
    systemctl disable "$unit"
done
systemctl mask \
    systemd-tmpfiles-clean.timer \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer \
    systemd-pstore.service getty@tty1.service
