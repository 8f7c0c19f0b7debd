# Traces the lines that run, for coverage; sourced by the warm shell and, through BASH_ENV, by each
# bash that it starts. The trace has a descriptor of its own.

BASH_XTRACEFD=$HX_TRACE_FD
PS4='+hx:${BASH_SOURCE[0]-}:$LINENO:'
builtin set -x
