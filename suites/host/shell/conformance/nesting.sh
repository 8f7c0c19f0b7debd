# Settings of an inner group replace settings of the outer group until the inner group ends.

show() { printf '%s\n' "$*"; }
log() { printf '%s ' "$1" >>"$SHELLSPEC_WORKDIR/nested"; }
read_log() { cat "$SHELLSPEC_WORKDIR/nested"; }
goes_on() {
  false
  echo on
}
points() { printf '%s\n' 'test || __() { :; }' '__ begin __' >"$SHELLSPEC_WORKDIR/points.sh"; }

Describe 'aliases'
  Path one=/etc two=/etc
  Dir three=/etc
  Describe 'inner'
    File one=/etc/passwd
    File three=/no/such
    It 'succeeded: an alias of the outer group hides inner aliases of the same name'
      The path one should be directory
      The dir three should be exist
      The file two should be directory
    End
    It 'succeeded: the first alias of an example hides later aliases'
      Path four=/dev/null
      Path four=/no/such
      The file four should be character device
      The contents of file four should equal ''
    End
    It 'succeeded: aliases of an earlier example no longer exist'
      The file four should not be exist
    End
  End
  It 'succeeded: aliases of the inner group do not exist after the group'
    The path one should be directory
    The path three should be directory
  End
End

Describe 'options'
  Set 'errexit:on' 'noglob:on'
  Describe 'inner'
    Set 'errexit:off'
    It 'succeeded: an option of the inner group replaces the same outer option'
      When run goes_on
      The output should equal on
    End
    It 'succeeded: other outer options stay set'
      When run eval 'show /et[c]'
      The output should equal '/et[c]'
    End
    It 'succeeded: an option of the example replaces the same option of the group'
      Set 'errexit:on'
      When run goes_on
      The output should equal ''
      The status should be failure
    End
  End
  It 'succeeded: options of the inner group do not apply after the group'
    When run goes_on
    The output should equal ''
    The status should be failure
  End
End

Describe 'hooks around the example'
  rm -f "$SHELLSPEC_WORKDIR/nested"
  BeforeAll 'log all1' 'log all2'
  AfterAll 'log end1' 'log end2'
  Before 'log each1'
  Before 'log each2'
  After 'log after1' 'log after2'
  After 'log after3'
  Describe 'inner'
    BeforeAll 'log all3'
    AfterAll 'log end3'
    Before 'log each3'
    After 'log after4'
    It 'succeeded: hooks of the outer group run first before an example'
      When call read_log
      The output should equal 'all1 all2 all3 each1 each2 each3 '
    End
    It 'succeeded: hooks of the inner group run first after an example'
      When call read_log
      The output should end with 'each3 after4 after3 after2 after1 each1 each2 each3 '
    End
  End
  It 'succeeded: hooks of the inner group do not run after the group'
    When call read_log
    The output should end with 'each3 after4 after3 after2 after1 end3 each1 each2 '
  End
End
It 'succeeded: AfterAll hooks have run from the inner group to the outer group'
  When call read_log
  The output should end with 'end3 each1 each2 after3 after2 after1 end2 end1 '
End
Describe 'a skipped group'
  Skip if 'always' true
  BeforeAll 'log never' false
  AfterAll 'log never' false
  It 'SKIPPED: an example whose group needs no BeforeAll'
    The value a should equal b
  End
  Describe 'with an inner group'
    BeforeAll 'log never' false
    AfterAll 'log never' false
    It 'SKIPPED: an example whose inner group needs no BeforeAll'
      The value a should equal b
    End
  End
End
Describe 'a group that is skipped after its first example'
  BeforeAll 'log all4'
  AfterAll 'log end4'
  It 'succeeded: the example before Skip'
    The value a should equal a
  End
  Skip
  It 'SKIPPED: an example after Skip'
    The value a should equal b
  End
End
It 'succeeded: BeforeAll and AfterAll have run only if their group had an example to run'
  When call read_log
  The output should end with 'end1 all4 end4 '
  The output should not include never
End

Describe 'hooks around the evaluation'
  BeforeCall 'show b1' 'show b2'
  AfterCall 'show a1' 'show a2'
  BeforeRun 'show b1' 'show b2'
  AfterRun 'show a1' 'show a2'
  Describe 'inner'
    BeforeCall 'show b3'
    AfterCall 'show a3'
    BeforeRun 'show b4'
    AfterRun 'show a4'
    It 'succeeded: outer hooks enclose inner hooks around a call'
      When call show body
      The output should equal "b1${SHELLSPEC_LF}b2${SHELLSPEC_LF}b3${SHELLSPEC_LF}body${SHELLSPEC_LF}a3${SHELLSPEC_LF}a2${SHELLSPEC_LF}a1"
    End
    It 'succeeded: outer hooks enclose inner hooks around a run'
      When run show body
      The output should equal "b1${SHELLSPEC_LF}b2${SHELLSPEC_LF}b4${SHELLSPEC_LF}body${SHELLSPEC_LF}a4${SHELLSPEC_LF}a2${SHELLSPEC_LF}a1"
    End
  End
  It 'succeeded: hooks of the inner group do not exist after the group'
    When call show body
    The lines of output should equal 5
  End
End

Describe 'points of a script'
  Before points
  Intercept begin:outer
  outer() { echo outer; }
  inner() { echo inner; }
  Describe 'inner'
    Intercept begin:inner
    It 'succeeded: Intercept of the inner group replaces the outer Intercept'
      When run source "$SHELLSPEC_WORKDIR/points.sh"
      The output should equal inner
    End
  End
  It 'succeeded: the outer Intercept applies again after the inner group'
    When run source "$SHELLSPEC_WORKDIR/points.sh"
    The output should equal outer
  End
End

Describe 'data'
  reads() { cat; }
  Data 'outer and long'
  Describe 'inner'
    Data 'inner'
    It 'succeeded: Data of the inner group replaces outer Data'
      When call reads
      The output should equal inner
    End
    It 'succeeded: Data of the example replaces Data of the group'
      Data 'own'
      When call reads
      The output should equal own
    End
  End
  It 'succeeded: the outer Data applies again after the inner group'
    When call reads
    The output should equal 'outer and long'
  End
End

Describe 'rows'
  Parameters
    outer 1
  End
  Describe 'inner'
    Parameters
      inner 2
    End
    It "succeeded: of both groups: $1 $2"
      The value "$1$2" should match pattern 'outer1|inner2'
      log "$1"
    End
  End
  It "succeeded: of the outer one alone: $1"
    When call read_log
    The output should end with ' outer inner '
  End
End

Describe 'other names of subjects and matchers'
  shellspec_syntax_alias 'shellspec_subject_text' 'shellspec_subject_value'
  Describe 'inner'
    shellspec_syntax_alias 'shellspec_subject_text' 'shellspec_subject_variable'
    It 'succeeded: an alias of the inner group replaces the outer alias'
      abc=content
      The text abc should equal content
    End
  End
  It 'succeeded: the outer alias applies again after the inner group'
    The text abc should equal abc
  End
End

Describe 'marks'
  Describe 'Pending around Skip'
    Pending 'outer'
    Describe 'inner'
      Skip 'inner'
      It 'SKIPPED: an example under Skip in a pending group'
        false
      End
    End
    It 'PENDING: an example beside a skipped group'
      The value a should equal b
    End
    Describe 'with a Pending of its own'
      Pending 'inner'
      It 'FIXED: a pending example whose expectations pass'
        The value a should equal a
      End
      It 'PENDING: a skipped example in a pending group'
        The value a should equal b
        Pending 'again'
      End
      It 'SKIPPED: an example that skips itself'
        Skip 'own'
        The value a should equal b
      End
    End
  End
  It 'succeeded: an example after a pending group'
    The value a should equal a
  End
  Describe 'stderr of a group'
    xIt 'SKIPPED: a skipped example does not show stderr of its group'
      false
    End
    echo complaint >&2
    Pending 'here'
    It 'FAILED: stderr of a group fails a pending example'
      The value a should equal b
    End
    It 'PENDING: stderr of a group does not fail the next pending example'
      The value a should equal b
    End
    It 'PENDING: a pending example may write to stderr'
      echo leak >&2
      The value a should equal b
    End
  End
End
