# Mocked commands ask the harness for their answer. The warm shell sources this file. The scripts on
# PATH that child processes run also source it.
#
# Descriptors: 203 and 204 are the two ends of a pipe with one byte, which serves as a lock: a process
# reads the byte before it asks, and writes it back afterwards. 205: replies. 206, 207: stdout and
# stderr of the reply. 208: the caller's environment. 209: the caller's stdin.
#
# Each function that code under test calls begins by turning the trace off, with stderr redirected.
# So 'set -x' shows only the code under test.

__hx_read_whole() { # FILE: set __hx_whole to its text, without NUL bytes
  local __hx_part=
  __hx_whole=
  {
    while IFS= builtin read -r -d '' __hx_part; do
      __hx_whole+=$__hx_part
    done
  } <"$1"
  __hx_whole+=$__hx_part
}

__hx_answer() { # NAME ARGS...: answer as the mock of NAME
  __hx_request mock "$@"
}

__hx_request() { # KIND NAME ARGS...
  local __hx_token __hx_reply __hx_ms __hx_through __hx_whole __hx_output __hx_part
  IFS= builtin read -r -N 1 -u 203 __hx_token
  builtin export -p >|/proc/self/fd/208
  builtin : >|/proc/self/fd/209
  case " ${HX_READS_STDIN-} " in
    *" $2 "*)
      while IFS= builtin read -r -d '' __hx_part; do
        builtin printf '%s\0' "$__hx_part" >>/proc/self/fd/209
      done
      builtin printf '%s' "$__hx_part" >>/proc/self/fd/209
      ;;
  esac
  builtin printf '%s\0' "$1" "$(($# + 1))" "${HX_CASE-}" "$PWD" "${@:2}" >&190
  IFS=' ' builtin read -r -u 205 __hx_reply __hx_ms __hx_through
  __hx_read_whole /proc/self/fd/206
  __hx_output=$__hx_whole
  __hx_read_whole /proc/self/fd/207
  builtin printf x >&204
  ((__hx_ms == 0)) || __hx_take_time
  if ((__hx_through)); then
    __hx_call_through "${@:2}"
    return
  fi
  [[ -z $__hx_output ]] || builtin printf '%s' "$__hx_output"
  [[ -z $__hx_whole ]] || builtin printf '%s' "$__hx_whole" >&2
  return "$__hx_reply"
}

__hx_take_time() { # advance the virtual clock by __hx_ms, or wait as long in real time
  if [[ -z ${HX_CLOCK-} ]]; then
    builtin printf -v __hx_part '%d.%03d' "$((__hx_ms / 1000))" "$((__hx_ms % 1000))"
    builtin read -r -t "$__hx_part" -u 201 || builtin :
    return 0
  fi
  builtin declare -F __hx_pass >/dev/null || . "$HX_CLOCK"
  __hx_pass "$__hx_ms"
}

__hx_call_through() { # NAME ARGS...: run the function that the mock replaced, or the real command
  if builtin declare -F "__hx_real_$1" >/dev/null; then
    "__hx_real_$1" "${@:2}"
    return
  fi
  (
    PATH=${PATH//"${HX_MOCKED-}:"/}
    __hx_part=$(builtin type -P -- "$1") || builtin exit 127
    builtin exec -- "$__hx_part" "${@:2}"
  )
}

command_not_found_handle() { # NAME ARGS...: bash calls this in a child process
  builtin set +x
  . "$HX_MOCKED_COMMAND"
  __hx_request missing "$@"
}
