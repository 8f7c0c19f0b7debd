#!/bin/sh
# Installs the newest kernels of a pattern, with their headers, into the root file system that is
# being built; runs inside it, where the package lists are those that signatures were checked on.
#
# usage: install-kernels.sh PATTERN COUNT
set -eu
pattern=$1
count=$2

export DEBIAN_FRONTEND=noninteractive
images=$(apt-cache search --names-only "^${pattern}\$" | cut -d' ' -f1 \
    | grep --extended-regexp --line-regexp -e "$pattern" | sort --version-sort --unique \
    | tail --lines="$count") || true
found=$(printf '%s' "$images" | grep --count .) || true
if [ "$found" -ne "$count" ]; then
    echo "E: The archives hold $found kernels named '$pattern', but the recipe wants $count." >&2
    exit 1
fi
headers=$(printf '%s\n' "$images" | sed 's/^linux-image-/linux-headers-/')
echo "I: installing kernels:" $images
# Unquoted: one word for each package, and package names hold no blanks.
# shellcheck disable=SC2086
apt-get install --yes --quiet=2 --no-install-recommends $images $headers
