#!/bin/sh
# Submits the shards, and the job that merges their reports when all have ended, however they ended.
# Written by `python -m docs.generator`; docs/ci.md says what to change.
#   slurm-submit.sh [SCRIPT]       SHARDS and REPORTS may be set; REPORTS lies on all nodes
set -eu
here=$(dirname "$0")
export REPORTS="${REPORTS:-$PWD/reports}"
shards=$(sbatch --parsable --array="0-$((${SHARDS:-3} - 1))" "${1:-$here/slurm-kvm.sh}")
# With the name of a cluster, sbatch prints `ID;CLUSTER`.
merge=$(sbatch --parsable --dependency="afterany:${shards%%;*}" "$here/slurm-merge.sh")
echo "shards: job $shards, merge: job $merge, reports: $REPORTS-merged"
