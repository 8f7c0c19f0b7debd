#!/bin/sh
# The program of the unit nvidia-device-plugin: has the plugin that is loaded already start, and stop
# with the unit.
control=/run/time-to-gpu/plugin
trap 'echo stop >"$control"; exit 0' TERM
echo start >"$control"
[ -z "${NOTIFY_SOCKET-}" ] || systemd-notify --ready
sleep infinity &
wait
