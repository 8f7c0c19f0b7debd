#!/bin/bash
echo "start $1"
helper() { echo "original helper"; }
test || __() { :; }
__ begin "$1" __
helper
__ finish __
[ "${2:-}" = "bad" ] && exit 42
echo "end"
