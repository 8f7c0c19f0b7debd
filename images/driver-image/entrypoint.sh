#!/bin/sh
# Where a container of the driver image starts: puts what it carries onto the node, whose /opt/gpu
# and /opt/actions are mounted below /mnt, and goes on in the mount namespace of the node's init.
#
# An action that is not known runs a full installation without copying the payload, as an old
# image does when it is asked for something that came later.
set -eu
action=${1-}

say() { echo "gpuinstall: $*"; }

case $action in
    copy | install | build-only | install-skip-build)
        say "copying the payload to /opt/gpu"
        # Another version's files must not stay beside this one's.
        rm -rf /mnt/gpu/*
        cp -a /opt/gpu/. /mnt/gpu/
        ;;
    *) say "the action '$action' is not known: installing" ;;
esac
[ "$action" != copy ] || exit 0

# Beside and renamed: an attempt that was cut off must not leave half a script.
cp /opt/actions/install.sh /mnt/actions/.install.sh.new
mv /mnt/actions/.install.sh.new /mnt/actions/install.sh
exec nsenter -t 1 -m -- /bin/sh /opt/actions/install.sh "$action"
