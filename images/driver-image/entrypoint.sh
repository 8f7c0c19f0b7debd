#!/bin/sh
# The entry point of a container of the driver image: copies the image's files to the node, whose
# /opt/gpu and /opt/actions are mounted below /mnt, and continues in the mount namespace of the
# node's init.
#
# An unknown action runs a full installation without copying the payload, like an old image that
# gets an action of a later version.
set -eu
action=${1-}

say() { echo "gpuinstall: $*"; }

case $action in
    copy | install | build-only | install-skip-build)
        say "copying the payload to /opt/gpu"
        # Files of another version must not stay beside the files of this version.
        rm -rf /mnt/gpu/*
        cp -a /opt/gpu/. /mnt/gpu/
        ;;
    *) say "the action '$action' is not known: installing" ;;
esac
[ "$action" != copy ] || exit 0

# Copied to a temporary name and renamed: an interrupted attempt must not leave half a script.
cp /opt/actions/install.sh /mnt/actions/.install.sh.new
mv /mnt/actions/.install.sh.new /mnt/actions/install.sh
exec nsenter -t 1 -m -- /bin/sh /opt/actions/install.sh "$action"
