#!/bin/sh
# Runs one shard, as a task of an array job; docs/ci/slurm-submit.sh submits the job.
# Written by `python -m docs.generator`; docs/ci.md says what to change.
#SBATCH --job-name=node-tests
#SBATCH --requeue
#SBATCH --cpus-per-task=2
#SBATCH --mem=8G
#SBATCH --time=60
#SBATCH --open-mode=append
#SBATCH --output=shard-%a.log
# For tests with GPUs of the host:
##SBATCH --gres=gpu:1
# shellcheck disable=SC2086,SC2153 # unquoted variables have several words; slurm-submit.sh sets REPORTS
set -eu
reports=$REPORTS/$SLURM_ARRAY_TASK_ID
# A cancelled task gets SIGTERM: pytest then ends its machines, removes their files and writes its reports.
exec ${PYTEST:-pytest} ${TESTS:-tests} ${OPTIONS:--n 2} --accelerator=kvm --shard=auto --report-dir="$reports"
