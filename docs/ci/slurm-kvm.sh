#!/bin/sh
# One shard, as a task of an array job; docs/ci/slurm-submit.sh submits it.
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
set -eu
reports=$REPORTS/$SLURM_ARRAY_TASK_ID
# A cancelled task gets TERM; pytest ends its machines and removes their files at INT.
env --default-signal=INT ${PYTEST:-pytest} ${TESTS:-tests} ${OPTIONS:--n 2} --accelerator=kvm --shard=auto --report-dir="$reports" &
tests=$!
trap 'kill -INT "$tests"' TERM
code=0
wait "$tests" || code=$?
# The signal ends the first wait, and not yet the tests.
while kill -0 "$tests" 2>/dev/null; do
    code=0
    wait "$tests" || code=$?
done
exit "$code"
