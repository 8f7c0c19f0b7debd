# A clock of its own for shell code: sleep, timeout and date advance and read it.
#
# The clock shows the real time plus what was slept, which /proc/self/fd/200 holds in
# milliseconds. 201 is a pipe on which nothing ever comes; 202 logs sleeps, timeouts and alarms. A shell that
# sources this gets functions; the commands of the same names on PATH source it too. The functions
# begin by turning the trace off, with stderr closed to it: 'set -x' shows the code under test only.

__hx_slept=0

__hx_duration() { # TEXT: its milliseconds into __hx_ms; fails where it is no finite duration
  local __hx_number=$1 __hx_unit=1 __hx_fraction=
  case $1 in
    *s) __hx_number=${1%s} ;;
    *m) __hx_number=${1%m} __hx_unit=60 ;;
    *h) __hx_number=${1%h} __hx_unit=3600 ;;
    *d) __hx_number=${1%d} __hx_unit=86400 ;;
  esac
  case $__hx_number in
    '' | . | *[!0-9.]* | *.*.*) return 1 ;;
    *.*)
      __hx_fraction=${__hx_number#*.}000
      __hx_number=${__hx_number%%.*}
      ;;
    *) __hx_fraction=000 ;;
  esac
  __hx_ms=$(((10#${__hx_number:-0} * 1000 + 10#${__hx_fraction:0:3}) * __hx_unit))
}

__hx_read_clock() { # what was slept so far, into __hx_offset
  __hx_offset=0
  IFS= builtin read -r __hx_offset </proc/self/fd/200 || builtin :
  __hx_offset=${__hx_offset:-0}
  if ((__hx_offset != __hx_slept)); then
    SECONDS=$((SECONDS + __hx_offset / 1000 - __hx_slept / 1000))
    builtin unset -v EPOCHSECONDS EPOCHREALTIME
    builtin printf -v EPOCHSECONDS '%(%s)T' -1
    EPOCHSECONDS=$((EPOCHSECONDS + __hx_offset / 1000))
    builtin printf -v EPOCHREALTIME '%d.%06d' "$EPOCHSECONDS" $((__hx_offset % 1000 * 1000))
    __hx_slept=$__hx_offset
  fi
}

# timeout(1) takes an alarm for the death of its own child until it knows that one's number, which
# on a busy host may be long after that one began; when it sleeps, it waits for it.
__hx_await_timeout() {
  local __hx_state
  while IFS= builtin read -r __hx_state <"/proc/$HX_TIMEOUT_PID/stat"; do
    [[ $__hx_state != *') '[SZT]' '* ]] || return 0
    builtin read -r -t 0.002 -u 201 || builtin :
  done 2>/dev/null
}

__hx_pass() { # MILLISECONDS
  local __hx_offset __hx_end=${HX_DEADLINE:-0}
  __hx_read_clock
  builtin printf 'sleep %d at %d\n' "$1" "$__hx_offset" >>/proc/self/fd/202
  if ((__hx_end && __hx_offset + $1 >= __hx_end)) && __hx_find_end $((__hx_offset + $1)); then
    builtin printf '%d\n' $((__hx_offset > __hx_end ? __hx_offset : __hx_end)) >|/proc/self/fd/200
    ((HX_TIMEOUT_PID != BASHPID)) || builtin exit 124
    builtin printf 'alarm %d\n' "$HX_TIMEOUT_PID" >>/proc/self/fd/202
    __hx_await_timeout
    builtin kill -ALRM "$HX_TIMEOUT_PID" 2>/dev/null && "$HX_SLEEP" 5
    return
  fi
  builtin printf '%d\n' $((__hx_offset + $1)) >|/proc/self/fd/200
  __hx_read_clock
  # code that waits for a process of its own must let it run
  [[ -z ${!-} ]] || ! __hx_has_running_job || builtin read -r -t 0.02 -u 201 || builtin :
}

# Whether timeout(1) acts before a sleep is over, and when: into __hx_end. After its first signal the
# code may clean up, for as long as --kill-after says.
__hx_find_end() { # MILLISECONDS: when the sleep is over
  local __hx_log
  IFS= builtin read -r -d '' __hx_log </proc/self/fd/202 || builtin :
  __hx_log=${__hx_log##*"timeout $HX_TIMEOUT_PID"$'\n'} # an earlier one may have had this number
  [[ $__hx_log == *"alarm $HX_TIMEOUT_PID"$'\n'* ]] || return 0
  __hx_end=$((__hx_end + HX_KILL_AFTER))
  ((HX_KILL_AFTER && $1 >= __hx_end))
}

# Whether a job runs. What 'jobs' lists goes below the first line of the clock's file, which the next
# sleep replaces: a command substitution would fork. A subshell does not list the jobs of its
# parent, for which its code may wait all the same.
__hx_has_running_job() {
  local __hx_job=
  builtin jobs -rp >>/proc/self/fd/200
  {
    IFS= builtin read -r __hx_job
    IFS= builtin read -r __hx_job
  } </proc/self/fd/200
  [[ -n $__hx_job ]] || builtin kill -0 "$!" 2>/dev/null
}

sleep() {
  { local -; builtin set +x; } 2>/dev/null
  local __hx_ms __hx_total=0 __hx_part
  for __hx_part in "$@"; do
    __hx_duration "$__hx_part" || {
      "$HX_SLEEP" "$@"
      return
    }
    __hx_total=$((__hx_total + __hx_ms))
  done
  if (($# == 0)); then
    "$HX_SLEEP"
    return
  fi
  __hx_pass "$__hx_total"
}

date() {
  { local -; builtin set +x; } 2>/dev/null
  local __hx_part __hx_offset
  __hx_read_clock
  # what loops ask for again and again, without a process for each answer
  if [[ $# == 1 && $1 == +%s ]] && ((__hx_offset % 1000 == 0)); then
    builtin printf -v __hx_part '%(%s)T' -1
    builtin printf '%d\n' $((__hx_part + __hx_offset / 1000))
    return
  fi
  for __hx_part in "$@"; do
    case $__hx_part in
      -d* | --da* | -r* | --re* | -f* | --fi* | -s* | --se* | --he* | --ve*) __hx_offset=0 ;;
    esac
  done
  if ((__hx_offset == 0)); then
    "$HX_DATE" "$@"
    return
  fi
  builtin printf -v __hx_part '%d.%03d' $((__hx_offset / 1000)) $((__hx_offset % 1000))
  "$HX_DATE" -d "$__hx_part seconds" "$@"
}

timeout() {
  { local -; builtin set +x; } 2>/dev/null
  (__hx_become_timeout "$@")
}

__hx_become_timeout() { # ARGS...: of timeout(1), which replaces this shell
  local __hx_ms __hx_offset __hx_part __hx_skip= __hx_found= __hx_at=0 __hx_plain=1 __hx_kill=0
  for __hx_part in "$@"; do
    __hx_at=$((__hx_at + 1))
    if [[ -n $__hx_skip ]]; then
      [[ $__hx_skip != kill ]] || __hx_kill=$__hx_part
      __hx_skip=
      continue
    fi
    case $__hx_part in
      -k | --kill-after) __hx_skip='kill' ;;
      -k*) __hx_kill=${__hx_part#-k} ;;
      --kill-after=*) __hx_kill=${__hx_part#*=} ;;
      -s | --signal) __hx_skip=1 __hx_plain= ;;
      -*) __hx_plain= ;;
      *)
        __hx_found=$__hx_part
        break
        ;;
    esac
  done
  __hx_read_clock
  __hx_duration "$__hx_kill" || __hx_ms=0
  __hx_kill=$__hx_ms
  if __hx_duration "$__hx_found" && ((__hx_ms > 0)); then
    __hx_ms=$((__hx_ms + __hx_offset))
    if ((${HX_DEADLINE:-0} == 0 || __hx_ms < HX_DEADLINE)); then
      builtin export HX_DEADLINE=$__hx_ms HX_TIMEOUT_PID=$BASHPID HX_KILL_AFTER=$__hx_kill
      builtin printf 'timeout %d\n' "$BASHPID" >>/proc/self/fd/202
    fi
    __hx_part=${@:__hx_at+1:1}
    # a mock takes time of the virtual clock only, and needs no timeout(1) to end it
    if [[ -n $__hx_plain && " ${__hx_mocked-} " == *" $__hx_part "* && -n $__hx_part ]]; then
      __hx_answer "${@:__hx_at+1}"
      builtin exit
    fi
  fi
  builtin exec "$HX_TIMEOUT" "$@"
}
