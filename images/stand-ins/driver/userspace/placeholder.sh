#!/bin/sh
# Installed under the name of a driver's program that nothing here runs: teardown has to remove it.
echo "$(basename "$0"): a stand-in that only takes its place" >&2
exit 1
