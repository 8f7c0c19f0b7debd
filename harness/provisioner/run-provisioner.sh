#!/bin/sh
# Runs a provisioner's command as the next numbered run of this instance, so that the evidence of
# each run can be told from that of the others:
#
#   run-provisioner.sh NAME OUTCOME EVENTS LOG OUTPUT PROGRAM [ARGUMENT...]
#
# NAME is the name of the command. OUTCOME, EVENTS and LOG are the outcome file, the pattern of the
# event files and the log that the provisioner declares, or empty. The output is also appended to
# OUTPUT, and shown on the console, unless OUTPUT is empty: cloud-init does both itself.
#
# The folder of a run says what was there before it: harness.evidence.runs reads it.
name=$1 outcome=$2 events=$3 log=$4 output=$5
shift 5
latest=/run/gpu-node-exit-code
failed=/run/gpu-node-failed-command
runs=/var/lib/cloud/instance/provisioner-runs

# Prints inode and time of the outcome, by which a run that wrote the same text again can be told from
# one that wrote none.
stamp_outcome() {
    [ -z "$outcome" ] || [ ! -f "$outcome" ] || stat -c '%i %y' -- "$outcome"
}

# On a full or read-only disk the program still runs.
number=1
while [ -e "$runs/$number" ]; do number=$((number + 1)); done
run=$runs/$number
{
    mkdir -p "$run"
    rm -f "$latest"
    printf '%s\n' "$name" >"$run/command"
    cat /proc/sys/kernel/random/boot_id >"$run/boot-id"
    [ -z "$outcome" ] || [ ! -f "$outcome" ] || cp "$outcome" "$run/outcome-before"
    stamp_outcome >"$run/outcome-stamp-before"
    if [ -n "$log" ]; then
        { [ -f "$log" ] && wc -c <"$log" || echo 0; } >"$run/log-bytes-before"
    fi
    # Without word splitting, but with patterns.
    (IFS='' && [ -n "$events" ] && ls -d -- $events) >"$run/events-before"
    # harness.provisioner.failed_command says which provisioners read it. `set -e` looks at the exit codes at which
    # bash runs a trap on ERR, and the first one outside of a subshell ends the script. LINENO counts lines of a trap.
    rm -f "$failed"
    cat >"$failed.bash" <<END
unset BASH_ENV
set -o errtrace
trap 'case \$-/\$BASH_SUBSHELL in *e*/0) { printf "%s\\n" "\$?" "\$LINENO" "\${BASH_SOURCE[0]-}" "\$BASH_COMMAND" >$failed; } 2>/dev/null; trap - ERR ;; esac' ERR
END
} 2>/dev/null

numbered() {
    printf '\n-- run %s of the provisioner: %s\n' "$number" "$name"
    "$@"
    code=$?
    printf '%s\n' "$code" >"$latest"
    printf '%s\n' "$code" 2>/dev/null >"$run/exit-code"
    stamp_outcome 2>/dev/null >"$run/outcome-stamp-after"
    [ ! -f "$failed" ] || mv "$failed" "$run/failed-command" 2>/dev/null
    return "$code"
}

if [ -z "$output" ]; then
    numbered "$@"
    exit
fi
console=/dev/console
(: >"$console") 2>/dev/null || console=/dev/null
numbered "$@" 2>&1 | tee -a "$output" "$console"
exit "$(cat "$latest")"
