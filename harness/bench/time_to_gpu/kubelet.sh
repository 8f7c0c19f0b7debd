#!/bin/sh
# The program of the unit kubelet: tells the loaded kubelet to start, and to stop when the unit stops.
# It is loaded before, since Python takes seconds to load in an emulated guest, and a real kubelet does not.
control=/run/time-to-gpu/kubelet
trap 'echo stop >"$control"; exit 0' TERM
echo start >"$control"
[ -z "${NOTIFY_SOCKET-}" ] || systemd-notify --ready
sleep infinity &
wait
