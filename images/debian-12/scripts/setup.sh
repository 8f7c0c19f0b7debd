#!/bin/sh
# Selects the units that run on the node; runs inside the root file system while the image is built.
set -eu

# The agent's port starts the agent. The links are made here, since the package data of a wheel
# can't contain links.
systemctl enable systemd-networkd.service harness-agent.service
# These services are started only on demand.
systemctl disable docker-registry.service

# No node lives for a day, and each of these units takes time at boot. Timers also take time in each
# clone: when the clock is set, systemd sends the new elapse time of each timer over D-Bus.
systemctl mask \
    systemd-tmpfiles-clean.timer \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer \
    systemd-pstore.service getty@tty1.service

# Mounts that are not used on the node, and the modules that these mounts and the console's login
# would load.
systemctl mask \
    dev-hugepages.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
    sys-kernel-config.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount \
    modprobe@configfs.service modprobe@dm_mod.service modprobe@drm.service \
    modprobe@fuse.service modprobe@loop.service

# Generators run each time systemd reloads its units, fourteen times while a node is provisioned,
# and took more than half of the time of a reload. The generators that are kept read fstab, the
# kernel's command line and the consoles, or belong to cloud-init; the others have nothing to do on
# a node.
mkdir --parents /etc/systemd/system-generators
for generator in /usr/lib/systemd/system-generators/*; do
    name=${generator##*/}
    case $name in
        cloud-init-generator | systemd-debug-generator | systemd-fstab-generator | systemd-getty-generator) ;;
        *) ln --symbolic /dev/null "/etc/systemd/system-generators/$name" ;;
    esac
done

# The journal is kept across boots, so that the journal of a dead node can be read from its disk.
mkdir --parents /var/log/journal
