#!/bin/sh
# Compiles the stand-in for NVIDIA's management library.
#
# usage: build.sh VERSION FOLDER [ROOT]
#
# VERSION is the driver's version: like the real library, the stand-in works only with this version.
# libnvidia-ml.so.VERSION and its link are written into FOLDER. ROOT, for tests, is the folder below
# which /proc and /sys are read.
set -eu
here=$(dirname "$0")
library=libnvidia-ml.so

${CC:-gcc} -std=gnu11 -O2 -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden -s \
    "-DNV_VERSION_STRING=\"$1\"" "-DNODE_ROOT=\"${3-}\"" \
    "-Wl,-soname,$library.1" -Wl,-z,defs \
    -o "$2/$library.$1" "$here"/*.c -lpthread
ln -sf "$library.$1" "$2/$library.1"
