#!/bin/sh
# Compiles the stand-in for NVIDIA's management library.
#
# usage: build.sh VERSION FOLDER [ROOT]
#
# VERSION is the driver's: as the real library, it works beside no other one. FOLDER receives
# libnvidia-ml.so.VERSION and its link. ROOT, for tests, is the folder to read /proc and /sys below.
set -eu
here=$(dirname "$0")
library=libnvidia-ml.so

${CC:-gcc} -std=gnu11 -O2 -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden -s \
    "-DNV_VERSION_STRING=\"$1\"" "-DNODE_ROOT=\"${3-}\"" \
    "-Wl,-soname,$library.1" -Wl,-z,defs \
    -o "$2/$library.$1" "$here"/*.c -lpthread
ln -sf "$library.$1" "$2/$library.1"
