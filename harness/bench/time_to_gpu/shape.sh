#!/bin/sh
# Delays and limits all traffic of this guest's network card: shape.sh DELAY_MS RATE_KBIT
# Both apply to each direction, so a round trip has the delay twice.
set -eu
device=$(ip -o link show | sed -n 's/^[0-9]*: \(e[^:@]*\).*/\1/p' | head -n 1)
[ -n "$device" ] || { echo "there is no network card to shape" >&2; exit 1; }
modprobe ifb numifbs=1
ip link set ifb0 up
for link in "$device" ifb0; do
    tc qdisc replace dev "$link" root netem delay "$1ms" rate "$2kbit" limit 10000
done
tc qdisc add dev "$device" handle ffff: ingress
tc filter add dev "$device" parent ffff: matchall action mirred egress redirect dev ifb0
