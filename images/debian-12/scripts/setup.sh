#!/bin/sh
# Chooses what runs on the node; runs inside the root file system while the image is built.
set -eu

# The agent is wanted by its port. Links are made here: package data of a wheel cannot hold any.
systemctl enable systemd-networkd.service harness-agent.service
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

# Generators run whenever units are read anew, fourteen times while a node is provisioned, and took
# more than half of the time that this takes. What is kept reads fstab, the kernel's command line and
# the consoles, or is cloud-init's own; there is nothing here for the others.
mkdir --parents /etc/systemd/system-generators
for generator in /usr/lib/systemd/system-generators/*; do
    name=${generator##*/}
    case $name in
        cloud-init-generator | systemd-debug-generator | systemd-fstab-generator | systemd-getty-generator) ;;
        *) ln --symbolic /dev/null "/etc/systemd/system-generators/$name" ;;
    esac
done

# Kept across boots, so that what a dead node said can be read from its disk.
mkdir --parents /var/log/journal
