#!/bin/sh
# Chooses what runs on the node; runs inside the root file system while the image is built.
set -eu

systemctl enable systemd-networkd.service
# Started on demand only.
systemctl disable docker-registry.service

# Nothing here lives for a day, and each costs time at boot.
systemctl mask \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer \
    systemd-pstore.service getty@tty1.service

# Kept across boots, so that what a dead node said can be read from its disk.
mkdir --parents /var/log/journal
