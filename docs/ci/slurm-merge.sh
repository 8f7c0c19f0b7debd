#!/bin/sh
# Merges the reports of all shards; docs/ci/slurm-submit.sh submits this job.
# Written by `python -m docs.generator`; docs/ci.md says what to change.
#SBATCH --job-name=node-tests-merge
#SBATCH --output=merge.log
set -eu
exec ${HARNESS:-harness} report merge "$REPORTS" --partial --to "$REPORTS-merged"
