#!/bin/sh
# The program of the unit kubelet: tells the loaded kubelet to start, and to stop when the unit stops.
# The kubelet is loaded before this unit starts: in an emulated guest, Python takes seconds to load, unlike
# a real kubelet.
control=/run/time-to-gpu/kubelet
trap 'echo stop >"$control"; exit 0' TERM
echo start >"$control"
[ -z "${NOTIFY_SOCKET-}" ] || systemd-notify --ready
sleep infinity &
wait
