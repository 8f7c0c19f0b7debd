# Traces the commands that run, for coverage. The warm shell and the shell of specs source this
# file. Each bash that these shells start sources it through BASH_ENV. In a machine this file is the
# BASH_ENV of all services.
#
# The trace goes to a separate descriptor. An entry has the depth of functions and sourced files,
# the file, the line and the directory, separated by control characters that no script contains.
# Bash's trace ('set -x') writes the entries. If the code under test itself uses 'set -x', a trap on
# DEBUG writes them.
#
# 'bash -x' does not show the code of this file.

{
  __hx_trace_fd=${HX_TRACE_FD-}
  if [[ -z $__hx_trace_fd ]]; then
    builtin exec {__hx_trace_fd}>>"${BASH_SOURCE[0]%/*}/traces/$$" || __hx_trace_fd=
  fi
  __hx_traced=
  if [[ -n ${HX_TRACE_BY_TRAP-} || $- == *x* ]]; then
    __hx_traced=1
  else
    if [[ -f $0 && -r $0 ]]; then
      IFS= builtin read -r -d '' __hx_traced <"$0" || builtin :
    fi
    __hx_traced+=$'\n'${BASH_EXECUTION_STRING-}
    [[ $__hx_traced =~ (^|[^A-Za-z_])set[[:blank:]]+([-+][A-Za-z]+[[:blank:]]+)*[-+][A-Za-z]*x|xtrace ]] ||
      __hx_traced=
    builtin unset -v BASH_REMATCH
  fi
  if [[ -z $__hx_trace_fd ]]; then
    builtin unset -v __hx_traced
  elif [[ -n $__hx_traced ]]; then
    # The last argument, "$_", preserves the value of '$_'. Functions do not inherit traps of the code
    # under test, as without a trace.
    __hx_traced='{ builtin printf "+\036%s\037%s\037%s\037%s\036\n%.0s" "${#BASH_SOURCE[@]}" \
      "${BASH_SOURCE[0]-}" "$LINENO" "$PWD" "$_" >&'$__hx_trace_fd'
      [[ ${BASH_COMMAND^^} != "TRAP "*@(DEBUG|RETURN)* ]] || builtin set +T
      [[ $BASH_COMMAND != *BASH_XTRACEFD* &&
        $BASH_COMMAND != ?(builtin )"set -"@(*([[:alpha:]])v*([[:alpha:]])|o verbose)?( *) ]] || {
        builtin set +T
        builtin trap - DEBUG
      }; } 2>/dev/null'
    builtin set -T
    builtin trap "$__hx_traced" DEBUG
  else
    builtin unset -v __hx_traced
    BASH_XTRACEFD=$__hx_trace_fd
    PS4=$'+\036${#BASH_SOURCE[@]}\037${BASH_SOURCE[0]-}\037$LINENO\037$PWD\036'
    builtin set -x
  fi
  builtin unset -v __hx_trace_fd
} 2>/dev/null
