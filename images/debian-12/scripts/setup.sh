#!/bin/sh
# Chooses what runs on the node; runs inside the root file system while the image is built.
set -eu

systemctl enable systemd-networkd.service
# Started on demand only.
systemctl disable docker-registry.service

# Nothing here lives for a day, and each costs time at boot. A timer costs each clone more: when its
# clock is set, systemd tells all of D-Bus when the timer will elapse now.
systemctl mask \
    systemd-tmpfiles-clean.timer \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer \
    systemd-pstore.service getty@tty1.service

# Mounts that nothing here uses, and the modules that they and the console's login would load.
systemctl mask \
    dev-hugepages.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
    sys-kernel-config.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount \
    modprobe@configfs.service modprobe@dm_mod.service modprobe@drm.service \
    modprobe@fuse.service modprobe@loop.service

# Kept across boots, so that what a dead node said can be read from its disk.
mkdir --parents /var/log/journal
