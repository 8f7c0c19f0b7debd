#!/bin/sh
# A stand-in for nvidia-bug-report.sh: gathers what the node knows about its driver, in the file
# and in the folder in which the real one leaves its report.
set -eu
report=nvidia-bug-report.log
{
    echo "nvidia-bug-report.sh (stand-in), $(date --utc), kernel $(uname -r)"
    for file in /proc/driver/nvidia/version /proc/driver/nvidia/gpus/*/information \
        /var/log/nvidia-installer-*.log /var/lib/dkms/nvidia/*/*/*/log/make.log; do
        [ -r "$file" ] || continue
        echo "____________________________________________"
        echo "*** $file"
        cat "$file"
    done
    for command in 'lspci -nnk -d 10de:' 'lsmod' 'dkms status' 'dmesg'; do
        echo "____________________________________________"
        echo "*** $command"
        $command 2>&1 || true
    done
} >"$report"
gzip --force "$report"
echo "Wrote $report.gz."
