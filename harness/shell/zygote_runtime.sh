# The warm shell: has sourced what is under test, and forks for each evaluation.
#
# Sourced through BASH_ENV; the script on stdin sources the files and ends with __hx_serve.
# Descriptors 190 to 202 as in spec_runtime.sh, 203 to 209 as in double.sh; 198 holds the code of
# the next evaluation, 199 receives the variables after it.

unset BASH_ENV
__hx_at=190
for __hx_fd in $HX_FDS; do
  eval "exec $__hx_at<&$__hx_fd $__hx_fd<&-"
  __hx_at=$((__hx_at + 1))
done
unset HX_FDS __hx_fd __hx_at
. "$HX_LIBRARY/double.sh"
[[ -z ${HX_CLOCK-} ]] || . "$HX_CLOCK"

for __hx_name in $HX_DENIED; do
  eval "$__hx_name() { __hx_answer $__hx_name \"\$@\"; }"
done
unset __hx_name

__hx_after() { # STATUS: in the evaluation's shell, when it is over
  builtin trap - EXIT
  builtin set +eux
  builtin declare -p >|/proc/self/fd/199
  builtin printf '%s\0' when 1 "$1" >&190
}

__hx_serve() {
  builtin set +e
  builtin printf '%s\0' ready 0 >&190
  local __hx_word
  while IFS= builtin read -r -u 191 __hx_word; do
    (
      builtin trap '__hx_after $?' EXIT
      . /proc/self/fd/198
    ) >|/proc/self/fd/195 2>|/proc/self/fd/194 </dev/null
    builtin printf '%s\0' end 1 $? >&190
  done
}
