# What is hard for a runner in real provisioning scripts: exits, traps, modes, jobs, odd text.

strict() { set -euo pipefail; false; echo unreached; }
leaves() { exit "${1:-0}"; }
prints() { echo "$1"; return "${2:-0}"; }

Describe 'code that exits'
  It 'succeeded: exit in a command substitution'
    inner() { got=$(leaves 4); echo "got $?"; }
    When call inner
    The output should equal 'got 4'
  End
  It 'succeeded: exit in a pipe' bash
    inner() { leaves 4 | cat; echo "${PIPESTATUS[0]}"; }
    When call inner
    The output should equal 4
  End
  It 'succeeded: an EXIT trap of the code under run'
    trapped() { trap 'echo bye' EXIT; exit 5; }
    When run trapped
    The output should equal bye
    The status should equal 5
  End
  It 'succeeded: code under run kills its own shell' bash
    dies() { kill -TERM "$BASHPID"; sleep 5; }
    When run dies
    The status should equal 143
    The stderr should include Terminated
  End
  It 'succeeded: code under run replaces its shell by exec'
    replaces() { exec echo replaced; }
    When run replaces
    The output should equal replaced
  End
End

Describe 'modes of the code'
  It 'succeeded: strict under run' bash
    When run strict
    The status should be failure
    The output should equal ''
  End
  It 'succeeded: a changed IFS survives'
    sets() { IFS=:; }
    When call sets
    The status should be success
    The value 'a b' should equal 'a b'
    The variable IFS should equal :
  End
  It 'succeeded: an IFS with the characters of paths and numbers survives'
    sets() { IFS=/0123456789cdefloprs-; echo out; }
    When call sets
    The status should be success
    The output should equal out
    The variable IFS should equal /0123456789cdefloprs-
    The path "$SHELLSPEC_WORKDIR" should be exist
    Assert true
  End
  It 'succeeded: posix mode survives' bash
    sets() { set -o posix; }
    When call sets
    The status should be success
    The variable POSIXLY_CORRECT should be defined
  End
  It 'succeeded: a pipe that fails' bash
    piped() { set -o pipefail; false | true; }
    When call piped
    The status should be failure
  End
  It 'succeeded: readonly in one example'
    readonly mine=1
    The variable mine should be readonly
  End
  It 'succeeded: a readonly variable does not exist in the next example'
    mine=2
    The variable mine should equal 2
    The variable mine should not be readonly
  End
  It 'FAILED: assigning to a readonly variable aborts'
    readonly fixed=1
    fixed=2
    The variable fixed should equal 1
  End
  It 'succeeded: an ERR trap of the code' bash
    errs() { trap 'echo trapped' ERR; (exit 3); false; true; }
    When run errs
    The status should be success
    The output should be defined
  End
  It 'succeeded: umask'
    masks() { umask 077; : >"$SHELLSPEC_WORKDIR/masked"; }
    When call masks
    The value "$(stat -c %a "$SHELLSPEC_WORKDIR/masked")" should equal 600
    rm -f "$SHELLSPEC_WORKDIR/masked"
  End
End

Describe 'text'
  It 'succeeded: carriage returns in output'
    When call printf 'a\r\nb\r\n'
    The line 1 of output should start with a
    The line 1 of output should not equal a
    The length of line 2 of output should equal 2
  End
  It 'succeeded: a value that looks like an option'
    When call prints '-n -e'
    The output should equal '-n -e'
    The output should start with '-n'
  End
  It 'succeeded: only newlines'
    When call printf '\n\n\n'
    The output should equal ''
    The entire output should equal '


'
    The lines of output should equal 0
  End
  It 'succeeded: words of the spec language as values'
    When call prints 'should not equal of the End'
    The output should equal 'should not equal of the End'
  End
  It 'succeeded: a subject named like a word'
    of=1 should=2
    The variable of should equal 1
    The variable should should equal 2
  End
  It 'succeeded: percent signs'
    When call prints '100% %s %d'
    The output should equal '100% %s %d'
  End
  It 'FAILED: an unquoted variable that splits'
    two='x y'
    When call prints "$two"
    The output should equal $two
  End
End

Describe 'jobs'
  It 'succeeded: a coprocess' bash
    talk() { coproc cat; echo hi >&"${COPROC[1]}"; read -r said <&"${COPROC[0]}"; echo "$said"; kill "$COPROC_PID"; }
    When run talk
    The output should equal hi
    The status should be defined
    The stderr should be defined
  End
  It 'succeeded: process substitution' bash
    both() { cat <(echo one) <(echo two); }
    When call both
    The output should equal "one
two"
  End
  It 'succeeded: unusual redirections work'
    odd() { exec 7>&1; echo seven >&7; exec 7>&-; echo err >&2; { echo both; } 2>&1; }
    When call odd
    The output should equal "seven
both"
    The stderr should equal err
  End
End

Describe 'mocks of mocks'
  curl() { wget "$@" | tr a-z A-Z; }
  wget() { echo "wget $*"; }
  It 'succeeded: a mock calls a mock'
    When call curl x
    The output should equal 'WGET X'
  End
  It 'succeeded: of an absolute path' bash
    /opt/never/tool() { echo "tool $1"; }
    When call /opt/never/tool 1
    The output should equal 'tool 1'
  End
  It 'succeeded: env and timeout see a Mock'
    Mock never-there
      echo "there $1 ${WITH:-}"
    End
    wrapped() { env WITH=it never-there a; timeout 5 never-there b; }
    When call wrapped
    The output should equal "there a it
there b "
  End
  It 'succeeded: a Mock writes to stderr'
    Mock complains
      echo loud >&2
      exit 2
    End
    When call complains
    The stderr should equal loud
    The status should equal 2
  End
  It 'succeeded: mocks in a subshell can append their calls to a file'
    calls=$SHELLSPEC_WORKDIR/calls
    systemctl() { echo "$*" >>"$calls"; }
    works() { (systemctl stop x); $(systemctl start x); systemctl status x | cat; }
    When call works
    The contents of file "$calls" should equal "stop x
start x
status x"
    rm -f "$calls"
  End
  It 'succeeded: unset removes a mock' bash
    unset -f wget
    here() { declare -F wget >/dev/null && echo yes || echo no; }
    When call here
    The output should equal no
  End
  It 'succeeded: the mock exists again in the next example'
    When call wget
    The output should equal 'wget '
  End
End

Describe 'hooks that go elsewhere'
  Describe 'a hook function that changes directory'
    go() { cd /usr; }
    BeforeEach go
    It 'succeeded: an example runs in the directory to which its hook changed'
      The value "$PWD" should equal /usr
    End
  End
  It 'succeeded: an example outside of the group runs in the old directory'
    The value "$PWD" should not equal /usr
  End
End

Describe 'statements between'
  It 'succeeded: case, until, arithmetic, [[ ]]' bash
    n=0
    until ((n >= 2)); do ((n += 1)); done
    case $n in
      2)
        The value "$n" should equal 2
        ;;
      *)
        The value "$n" should equal never
        ;;
    esac
    [[ $n == 2 ]]
    The variable n should equal 2
  End
  It 'FAILED: a sentence that does not begin its line'
    case a in
      a) The value a should equal a ;;
    esac
  End
End

Describe 'code in strict mode' bash
  set -Eeuo pipefail
  trap 'echo "line $LINENO failed" >&2' ERR
  IFS=$'\n\t'
  works() { local text='a b'; echo "$text"; }
  fails() { false; }
  Mock hostname
    echo "$*"
  End
  secret=1 other=2
  Mock host-name
    echo "[$secret$other]"
  End

  It 'succeeded: code that succeeds does not run the ERR trap'
    When call works
    The output should equal 'a b'
  End
  It 'succeeded: a failure under run runs the ERR trap'
    When run fails
    The status should be failure
    The error should include 'failed'
  End
  It 'succeeded: mocks get their arguments as separate words'
    names() { hostname a b; host-name; }
    When run names
    The output should equal "a b${SHELLSPEC_LF}[]"
  End
  Describe 'deeper'
    It 'succeeded: the end of a nested group does not run the ERR trap'
      When call works
      The output should be present
    End
  End
  It 'FAILED: an example with a failing statement'
    fails
    The value reached should equal reached
  End
  It 'succeeded: the example after a failing statement runs'
    When call works
    The output should be present
  End
End

Describe 'code with an IFS of characters in paths and numbers'
  IFS=/0123456789cdefloprs-
  Before 'begin=1'
  After 'test "$begin" = 1'
  begin() { echo out; echo err >&2; return 12; }
  matches() { test "$matches" = out; }

  It 'succeeded: an evaluation'
    When call begin
    The status should equal 12
    The output should satisfy matches
    The error should equal err
  End
  It 'succeeded: an evaluation in a subshell, with input and options'
    Data 'a b'
    Set errexit:on
    When run cat
    The output should equal 'a b'
  End
  It 'FAILED: a pattern'
    When run begin
    The status should equal 1
    The output should match pattern 'o?'
    The error should be present
  End
End

Describe 'code without globbing'
  set -f
  It 'succeeded: empty directory works without globbing'
    mkdir "$SHELLSPEC_WORKDIR/no-globs"
    The path "$SHELLSPEC_WORKDIR/no-globs" should be empty directory
    : >"$SHELLSPEC_WORKDIR/no-globs/file"
    The path "$SHELLSPEC_WORKDIR/no-globs" should not be empty directory
  End
End

Describe 'code that fails without a match' bash
  shopt -s failglob
  It 'succeeded: empty directory works with failglob'
    mkdir "$SHELLSPEC_WORKDIR/no-match"
    The path "$SHELLSPEC_WORKDIR/no-match" should be empty directory
  End
End

Describe 'a group that leaves early'
  Describe 'after one that does not'
    It 'succeeded: an example before the exit of its group'
      The value a should equal a
    End
  End
  exit 0
  It 'FAILED: an example after the exit of its group'
    The value a should equal a
  End
End
