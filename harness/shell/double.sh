# Mocked commands ask the harness what to answer; sourced by the warm shell and by the commands
# that stand on PATH for child processes.
#
# 203 204 the two ends of a pipe with one byte in it: who holds the byte may ask
# 205 replies    206 207 stdout and stderr of the reply    208 the caller's environment
# 209 the caller's stdin

__hx_read_whole() { # FILE: its text into __hx_whole, without NUL
  local __hx_part=
  __hx_whole=
  {
    while IFS= builtin read -r -d '' __hx_part; do
      __hx_whole+=$__hx_part
    done
  } <"$1"
  __hx_whole+=$__hx_part
}

__hx_answer() { # NAME ARGS...
  local __hx_token __hx_reply __hx_whole __hx_output __hx_part
  IFS= builtin read -r -N 1 -u 203 __hx_token
  builtin export -p >|/proc/self/fd/208
  : >|/proc/self/fd/209
  case " ${HX_READS_STDIN-} " in
    *" $1 "*)
      while IFS= builtin read -r -d '' __hx_part; do
        builtin printf '%s\0' "$__hx_part" >>/proc/self/fd/209
      done
      builtin printf '%s' "$__hx_part" >>/proc/self/fd/209
      ;;
  esac
  builtin printf '%s\0' mock $(($# + 1)) "$PWD" "$@" >&190
  IFS= builtin read -r -u 205 __hx_reply
  __hx_read_whole /proc/self/fd/206
  __hx_output=$__hx_whole
  __hx_read_whole /proc/self/fd/207
  builtin printf x >&204
  [[ -z $__hx_output ]] || builtin printf '%s' "$__hx_output"
  [[ -z $__hx_whole ]] || builtin printf '%s' "$__hx_whole" >&2
  return "$__hx_reply"
}
