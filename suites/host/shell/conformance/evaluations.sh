# The forms of When and their results. The name of an example begins with its verdict.

lib() {
  state=changed
  echo "out $1"
  echo "err $1" >&2
  return "${2:-0}"
}
silent() { :; }
leave() { exit "$1"; }
stops_at_false() {
  set -e
  false
  echo unreached
}
goes_on_after_false() {
  false
  echo reached
}
reads() { cat; }

Describe 'When call'
  It 'succeeded: output, error and status of a function'
    When call lib a 3
    The output should equal 'out a'
    The error should equal 'err a'
    The status should equal 3
  End

  It 'succeeded: When ignores a filler word'
    When I call echo a
    The output should equal a
  End

  It 'succeeded: When ignores several filler words'
    When the run command echo \
      a
    The output should equal a
  End

  It 'FAILED: run script names no script'
    When run script
    The value a should equal a
    #> There is no evaluation 'When run script'
  End

  It 'succeeded: variables that call sets survive'
    When call lib a
    The variable state should equal changed
    The output should be present
    The error should be present
  End

  It 'succeeded: an external command'
    When call env -i true
    The status should be success
  End

  It 'succeeded: a builtin'
    When call printf '%s' '# x' # y
    The output should equal '# x'
  End

  It 'succeeded: the working directory survives'
    When call cd /
    The variable PWD should equal /
    The status should be success
  End

  It 'succeeded: errexit has no effect'
    When call goes_on_after_false
    The output should equal reached
  End

  It 'succeeded: a redirection on the line does not hide the output'
    When call eval 'echo one; echo two >&2'
    The output should equal one
    The error should equal two
  End

  It 'succeeded: stdin is empty without Data'
    When call reads
    The output should equal ''
  End
End

Describe 'When run'
  It 'succeeded: the argument of exit is the status'
    When run leave 7 # seven
    The status should equal 7
  End

  It 'succeeded: variables that run sets do not survive'
    state=before
    When run lib a
    The variable state should equal before
    The output should be present
    The error should be present
  End

  It 'succeeded: errexit that the code turns on ends the code'
    When run stops_at_false
    The status should be failure
    The output should equal ''
  End

  It 'succeeded: errexit of the example does not apply to the code'
    When run goes_on_after_false
    The output should equal reached
  End

  It 'succeeded: Set turns errexit on'
    Set 'errexit:on'
    When run goes_on_after_false
    The status should be failure
    The output should equal ''
  End
End

Describe 'When run command'
  env() { echo function; }

  It 'succeeded: When run command ignores a function of the same name'
    When run command env -i echo real
    The output should equal real
  End

  It 'succeeded: When run command does not accept a path'
    When run command /bin/true
    The status should equal 127
    The error should be present
  End

  It 'succeeded: an unknown command has the status 127'
    When run command no-such-command-at-all
    The status should equal 127
    The error should be present
  End
End

Describe 'When run script'
  write() {
    printf '%s\n' "$2" >"$SHELLSPEC_WORKDIR/$1"
    chmod "$3" "$SHELLSPEC_WORKDIR/$1"
  }

  It 'succeeded: the shebang is ignored' bash
    write ignored.sh '#!/bin/false
echo "ran with $1 ${BASH_VERSION:+in bash}"; exit 4' 755
    When run script "$SHELLSPEC_WORKDIR/ignored.sh" x
    The output should equal 'ran with x in bash'
    The status should equal 4
  End

  It 'succeeded: a script does not see a function mock'
    hostname() { echo mocked; }
    write mocked.sh 'type -t hostname' 755
    When run script "$SHELLSPEC_WORKDIR/mocked.sh"
    The output should not equal function
    The status should be defined
  End

  It 'succeeded: a file that may not run'
    write plain.sh 'echo x' 644
    When run script "$SHELLSPEC_WORKDIR/plain.sh"
    The status should equal 126
    The error should be present
  End

  It 'succeeded: a directory'
    When run script "$SHELLSPEC_WORKDIR"
    The status should equal 126
    The error should be present
  End

  It 'succeeded: a file that is not there'
    When run script "$SHELLSPEC_WORKDIR/missing.sh"
    The status should equal 127
    The error should be present
  End
End

Describe 'When run source'
  write() {
    printf '%s\n' "$2" >"$SHELLSPEC_WORKDIR/$1"
  }

  It 'succeeded: function mocks work'
    hostname() { echo mocked; }
    write sourced.sh 'hostname; echo "$1"; exit 3'
    When run source "$SHELLSPEC_WORKDIR/sourced.sh" arg
    The line 1 of output should equal mocked
    The line 2 of output should equal arg
    The status should equal 3
  End

  It 'succeeded: __SOURCED__ is unset'
    write unset.sh 'echo "[${__SOURCED__-unset}]"'
    When run source "$SHELLSPEC_WORKDIR/unset.sh"
    The output should equal '[unset]'
  End

  It 'succeeded: Intercept'
    Intercept begin
    __begin__() { echo "intercepted $*"; }
    write points.sh 'test || __() { :; }
__ begin first "second  one" __
__ other second __
test a = b || echo body'
    When run source "$SHELLSPEC_WORKDIR/points.sh"
    The line 1 of output should equal 'intercepted first second  one'
    The line 2 of output should equal body
  End

  It 'succeeded: Intercept with a function of another name'
    Intercept begin:mine other
    mine() { echo "mine $1"; }
    __other__() { echo "other $1"; }
    write named.sh 'test || __() { :; }
__ begin first __
__ other second __'
    When run source "$SHELLSPEC_WORKDIR/named.sh"
    The output should equal 'mine first
other second'
  End

  It 'succeeded: without Intercept the points do nothing'
    write quiet.sh 'set -e
test || __() { :; }
__ begin first __
echo body'
    When run source "$SHELLSPEC_WORKDIR/quiet.sh"
    The output should equal body
  End
End

Describe 'rules'
  It 'FAILED: When after an expectation'
    The value a should equal a
    When call silent
  End

  It 'succeeded: output and status are unset without When'
    The output should be undefined
    The status should be undefined
    The error should be undefined
  End

  It 'FAILED: an unknown evaluation'
    When frobnicate silent
    The status should be success
  End

  It 'succeeded: NUL bytes are removed from output'
    When call printf 'a\0b'
    The output should equal ab
  End

  It 'succeeded: a backslash continues the line of When'
    When call lib \
      a \
      3
    The output \
      should equal 'out a'
    The error should be present
    The status should be failure
  End

  It 'succeeded: arguments may contain any characters' bash
    When call printf '[%s]' 'a b' '' '*' "it's" $'new\nline'
    The output should equal "[a b][][*][it's][new
line]"
  End
End

Describe 'options that the code sets'
  sets() {
    set "$@"
    echo "last"
  }
  It 'succeeded: nounset of the code does not apply to later statements'
    When call sets -u
    The output should equal last
    The variable no_such should be undefined
    The contents of file /no/such should be undefined
    The value a should satisfy test a
  End
  It 'succeeded: noglob and noclobber'
    When call sets -fC
    The output should equal last
    The path /etc should be directory
  End
  It 'succeeded: errexit and pipefail' bash
    When call sets -eo pipefail
    The output should equal last
  End
  It 'succeeded: a trace is part of stderr of the evaluation'
    When call sets -x
    The output should equal last
    The stderr should equal '+ echo last'
  End
  It 'succeeded: a trace shows the nesting depth of a command' bash
    deeper() { set -x; eval ':'; { set +x; } 2>/dev/null; }
    When call deeper
    The line 1 of stderr should equal '+ eval :'
    The line 2 of stderr should equal '++ :'
  End
  It 'succeeded: lines of a diff are not mistaken for a trace'
    differ() { printf '%s\n' '--- a' '+++ b' '+ c' >&2; }
    When call differ
    The line 2 of stderr should equal '+++ b'
  End
  It 'succeeded: an error message of the shell has the line number of the spec' bash
    lost() {
      no_such_command
    }
    When run lost
    The stderr should include 'line 315: no_such_command'
    The status should equal 127
  End
  It 'succeeded: IFS and nocasematch' bash
    changes() { IFS=,; shopt -s nocasematch nullglob; }
    When call changes
    The variable IFS should equal ,
    The path /ETC should not be exist
    The status should be success
  End
End

# Traps act as in bash, and run only for the code under test.
Describe 'traps that an evaluation leaves' bash
  on_return() { trap 'echo cleaned' RETURN; echo data; }
  on_debug() { trap 'echo "D:$BASH_COMMAND"' DEBUG; true; false; }
  on_error() { trap 'echo error' ERR; false; true; }
  on_exit() { trap 'echo bye' EXIT; echo data; }
  It 'succeeded: on RETURN, under call'
    When call on_return
    The output should equal "data${SHELLSPEC_LF}cleaned"
  End
  It 'succeeded: on RETURN, under run'
    When run on_return
    The output should equal "data${SHELLSPEC_LF}cleaned"
  End
  It 'succeeded: on DEBUG, under call'
    When call on_debug
    The output should equal "D:true${SHELLSPEC_LF}D:false"
    The status should be failure
  End
  It 'succeeded: on DEBUG, under run'
    When run on_debug
    The output should equal "D:true${SHELLSPEC_LF}D:false"
    The status should be failure
  End
  It 'succeeded: on ERR, under call'
    Set 'errexit:off'
    When call on_error
    The output should equal ''
  End
  It 'succeeded: on EXIT, under run'
    When run on_exit
    The output should equal "data${SHELLSPEC_LF}bye"
  End
  Describe 'between hooks'
    BeforeCall 'echo before'
    AfterCall 'echo after'
    BeforeRun 'echo before'
    AfterRun 'echo after'
    It 'succeeded: on DEBUG, under call'
      debugged() { trap 'echo D' DEBUG; true; }
      When call debugged
      The lines of output should equal 3
      The line 2 of output should equal D
    End
    It 'succeeded: on DEBUG and RETURN, under call, in code that fails'
      fails() { trap 'echo D' DEBUG; trap 'echo R' RETURN; false; }
      When call fails
      The output should equal "before${SHELLSPEC_LF}D${SHELLSPEC_LF}D${SHELLSPEC_LF}D${SHELLSPEC_LF}R"
      The status should be failure
    End
    It 'succeeded: on RETURN, under run'
      When run on_return
      The lines of output should equal 4
      The line 3 of output should equal cleaned
    End
  End
  It 'succeeded: on RETURN, in a sourced script'
    %text > "$SHELLSPEC_WORKDIR/trapped.sh"
    #|trap 'echo left' RETURN
    #|echo data
    When run source "$SHELLSPEC_WORKDIR/trapped.sh"
    The output should equal "data${SHELLSPEC_LF}left"
  End
End

Describe 'Data'
  reads_path_of_stdin() { cat "$(readlink -f /dev/stdin)"; }
  Data 'text'

  It 'succeeded: called code can read its stdin by a path'
    When call reads_path_of_stdin
    The output should equal text
  End

  It 'succeeded: code under run can read its stdin by a path'
    When run reads_path_of_stdin
    The output should equal text
  End
End

It 'succeeded: set -v shows input only during the evaluation' bash
  shows() { set -v; }
  When call shows
  The status should equal 0
End
