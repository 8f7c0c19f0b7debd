#!/bin/sh
# Runs a provisioner's command as the next numbered run of this instance, so that the evidence of each
# run is separate:
#
#   run-provisioner.sh NAME OUTCOME EVENTS LOG OUTPUT PROGRAM [ARGUMENT...]
#
# NAME is the name of the command. OUTCOME, EVENTS and LOG are the outcome file, the pattern of the
# event files and the log that the provisioner declares, or empty. The output is also appended to
# OUTPUT and shown on the console. Under cloud-init OUTPUT is empty, since cloud-init does both itself.
#
# The folder of a run describes the files before the run; harness.evidence.runs reads that folder. The
# variables of this script have a prefix, since an assignment to an exported variable would change the
# program's environment.
runner_name=$1 runner_outcome=$2 runner_events=$3 runner_log=$4 runner_output=$5
shift 5
runner_latest=/run/gpu-node-exit-code
runner_failed=/run/gpu-node-failed-command
runner_runs=/var/lib/cloud/instance/provisioner-runs

# Prints inode and time of the outcome file, which differ even if a run writes the same text again.
stamp_outcome() {
    [ -z "$runner_outcome" ] || [ ! -f "$runner_outcome" ] || stat -c '%i %y' -- "$runner_outcome"
}

# Errors are ignored here, so that the program runs even on a full or read-only disk.
runner_number=1
while [ -e "$runner_runs/$runner_number" ]; do runner_number=$((runner_number + 1)); done
runner_run=$runner_runs/$runner_number
{
    mkdir -p "$runner_run"
    rm -f "$runner_latest"
    printf '%s\n' "$runner_name" >"$runner_run/command"
    cat /proc/sys/kernel/random/boot_id >"$runner_run/boot-id"
    [ -z "$runner_outcome" ] || [ ! -f "$runner_outcome" ] || cp "$runner_outcome" "$runner_run/outcome-before"
    stamp_outcome >"$runner_run/outcome-stamp-before"
    if [ -n "$runner_log" ]; then
        { [ -f "$runner_log" ] && wc -c <"$runner_log" || echo 0; } >"$runner_run/log-bytes-before"
    fi
    # Expand patterns, but do not split words.
    (IFS='' && [ -n "$runner_events" ] && ls -d -- $runner_events) >"$runner_run/events-before"
    # harness.provisioner.failed_command decides which provisioners read this file. `set -e` ends the script at the
    # first command outside of a subshell for which bash runs a trap on ERR. The trap is one line, since LINENO counts
    # lines of a trap too.
    rm -f "$runner_failed"
    cat >"$runner_failed.bash" <<END
unset BASH_ENV
set -o errtrace
trap 'case \$-/\$BASH_SUBSHELL in *e*/0) { printf "%s\\n" "\$?" "\$LINENO" "\${BASH_SOURCE[0]-}" "\$BASH_COMMAND" >$runner_failed; } 2>/dev/null; trap - ERR ;; esac' ERR
END
} 2>/dev/null

numbered() {
    printf '\n-- run %s of the provisioner: %s\n' "$runner_number" "$runner_name"
    "$@"
    code=$?
    printf '%s\n' "$code" >"$runner_latest"
    printf '%s\n' "$code" 2>/dev/null >"$runner_run/exit-code"
    stamp_outcome 2>/dev/null >"$runner_run/outcome-stamp-after"
    [ ! -f "$runner_failed" ] || mv "$runner_failed" "$runner_run/failed-command" 2>/dev/null
    return "$code"
}

if [ -z "$runner_output" ]; then
    numbered "$@"
    exit
fi
runner_console=/dev/console
(: >"$runner_console") 2>/dev/null || runner_console=/dev/null
numbered "$@" 2>&1 | tee -a "$runner_output" "$runner_console"
exit "$(cat "$runner_latest")"
