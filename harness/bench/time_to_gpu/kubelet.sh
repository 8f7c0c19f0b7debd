#!/bin/sh
# The program of the unit kubelet: has the kubelet that is loaded already start, and stop with the unit.
# An interpreter takes seconds to load in an emulated guest, which a real kubelet does not.
control=/run/time-to-gpu/kubelet
trap 'echo stop >"$control"; exit 0' TERM
echo start >"$control"
[ -z "${NOTIFY_SOCKET-}" ] || systemd-notify --ready
sleep infinity &
wait
