# A virtual clock for shell code: sleep and timeout advance the clock, and date reads it.
#
# The clock's time is the real time plus the total of all sleeps. The file at descriptor 200 stores
# this total in milliseconds. Descriptor 201 is a pipe that nobody writes to, and descriptor 202 is
# a log of sleeps, timeouts and alarms. This file defines functions in the shell that sources it.
# The commands on PATH with the same names source this file too. Each function begins by turning the
# trace off, with stderr redirected. So 'set -x' shows only the code under test.

__hx_slept=0

__hx_duration() { # TEXT: set __hx_ms to its milliseconds; fail if TEXT is not a finite duration
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

__hx_read_clock() { # set __hx_offset to the total of all sleeps so far
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

# Wait until timeout(1) sleeps, because timeout then waits for its child. Before timeout knows the
# child's PID, it would mistake an alarm for the child's death. On a busy host timeout may learn
# the PID long after the child has started.
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
    builtin kill -ALRM "$HX_TIMEOUT_PID" 2>/dev/null && "$HX_SLEEP" 5 214>&- # not a background job
    return
  fi
  builtin printf '%d\n' $((__hx_offset + $1)) >|/proc/self/fd/200
  __hx_read_clock
  # code that waits for its own background job must give the job time to run
  [[ -z ${!-} ]] || ! __hx_has_running_job || builtin read -r -t 0.02 -u 201 || builtin :
}

# Return whether timeout(1) sends a signal before a sleep ends; set __hx_end to the time of the
# signal. After the first signal the code may clean up for the duration of --kill-after.
__hx_find_end() { # MILLISECONDS: the time at which the sleep ends
  local __hx_log
  IFS= builtin read -r -d '' __hx_log </proc/self/fd/202 || builtin :
  __hx_log=${__hx_log##*"timeout $HX_TIMEOUT_PID"$'\n'} # an earlier timeout may have had this PID
  [[ $__hx_log == *"alarm $HX_TIMEOUT_PID"$'\n'* ]] || return 0
  __hx_end=$((__hx_end + HX_KILL_AFTER))
  ((HX_KILL_AFTER && $1 >= __hx_end))
}

# Return whether a background job is running. The output of 'jobs' is appended to the clock's file,
# below its first line, since a command substitution would fork; the next sleep rewrites the file.
# In a subshell 'jobs' does not list the parent's jobs, but the code may wait for the last job, $!.
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
  # loops call 'date +%s' again and again: answer without starting a process
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

__hx_become_timeout() { # ARGS...: replace this shell by timeout(1) with ARGS
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
    # a mock takes only virtual time, so it does not need timeout(1)
    if [[ -n $__hx_plain && " ${__hx_mocked-} " == *" $__hx_part "* && -n $__hx_part ]]; then
      __hx_answer "${@:__hx_at+1}"
      builtin exit
    fi
  fi
  builtin exec "$HX_TIMEOUT" "$@"
}
