#!/bin/sh
# The program of the unit nvidia-device-plugin: tells the loaded plugin to start, and to stop when the
# unit stops.
control=/run/time-to-gpu/plugin
trap 'echo stop >"$control"; exit 0' TERM
echo start >"$control"
[ -z "${NOTIFY_SOCKET-}" ] || systemd-notify --ready
sleep infinity &
wait
