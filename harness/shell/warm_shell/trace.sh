# Traces the commands that run, for coverage; sourced by the warm shell, by the shell of specs and,
# through BASH_ENV, by each bash that they start. In a machine it is the BASH_ENV of all services.
#
# The trace has a descriptor of its own. An entry: depth of functions and sourced files, file, line,
# directory; between control characters, which occur in no script.

if [[ -z ${HX_TRACE_FD-} ]]; then
  { builtin exec {BASH_XTRACEFD}>>"${BASH_SOURCE[0]%/*}/traces/$$"; } 2>/dev/null ||
    BASH_XTRACEFD=
else
  BASH_XTRACEFD=$HX_TRACE_FD
fi
if [[ -n ${BASH_XTRACEFD-} ]]; then
  PS4=$'+\036${#BASH_SOURCE[@]}\037${BASH_SOURCE[0]-}\037$LINENO\037$PWD\036'
  builtin set -x
fi
