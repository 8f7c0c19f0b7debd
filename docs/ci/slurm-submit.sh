#!/bin/sh
# Submits the shards, and a job that merges their reports when all shards have ended, even if some failed.
# Written by `python -m docs.generator`; docs/ci.md says what to change.
#   slurm-submit.sh [SCRIPT]
# The variables SHARDS and REPORTS may be set; REPORTS is a folder that all nodes share.
set -eu
here=$(dirname "$0")
export REPORTS="${REPORTS:-$PWD/reports}"
shards=$(sbatch --parsable --array="0-$((${SHARDS:-3} - 1))" "${1:-$here/slurm-kvm.sh}")
# If a cluster is named, sbatch prints `ID;CLUSTER`.
merge=$(sbatch --parsable --dependency="afterany:${shards%%;*}" "$here/slurm-merge.sh")
echo "shards: job $shards, merge: job $merge, reports: $REPORTS-merged"
