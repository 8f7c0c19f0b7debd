# Section 5: function mocks and command mocks.

calls_curl() { curl "$@"; }
calls_in_child() { bash -c 'curl "$@"' bash "$@"; }
calls_dashed() { apt-get "$@"; }

Describe 'function mocks'
  curl() { echo "mocked $*"; }
  It 'succeeded: seen by call'
    When call calls_curl -q
    The output should equal 'mocked -q'
  End
  It 'succeeded: seen by run and in a substitution'
    in_substitution() { echo "[$(curl x)]"; }
    When run in_substitution
    The output should equal '[mocked x]'
  End
  It 'succeeded: innermost wins'
    curl() { echo inner; }
    When call calls_curl
    The output should equal inner
  End
  It 'succeeded: a child process does not see it'
    When call bash -c 'type -t calls_curl'
    The output should equal ''
    The status should be failure
  End
  It 'succeeded: a child process sees it after export -f' bash
    export -f curl
    When call calls_in_child z
    The output should equal 'mocked z'
  End
  Describe 'shadowing commands that the runner could need' bash
    command() { echo "command $*"; }
    test() { return 0; }
    kill() { echo kill; }
    sleep() { echo slept; }
    rm() { echo "rm $*"; }
    cat() { echo cat; }
    ls() { echo ls; }
    tee() { echo tee; }
    mv() { echo mv; }
    echo() { builtin echo "$@"; }
    printf() { builtin printf "$@"; }
    read() { builtin read "$@"; }
    uses_them() {
      command foo
      test 1 = 2 && sleep 9
      rm -rf /never
      exit 3
    }
    exit() { echo "exit $1"; }
    It 'succeeded: call'
      When call uses_them
      The line 1 of output should equal 'command foo'
      The line 2 of output should equal slept
      The line 3 of output should equal 'rm -rf /never'
      The line 4 of output should equal 'exit 3'
    End
    It 'succeeded: run'
      When run uses_them
      The output should include 'exit 3'
    End
    It 'succeeded: contents of a file'
      The contents of file /etc/hostname should be defined
    End
  End
End

Describe 'Mock'
  Mock curl
    echo "curl $# $1"
    exit 6
  End
  It 'succeeded: seen by functions'
    When call calls_curl a b
    The output should equal 'curl 2 a'
    The status should equal 6
  End
  It 'succeeded: seen by child processes'
    When call calls_in_child a
    The output should equal 'curl 1 a'
    The status should equal 6
  End
  Describe 'inner'
    Mock curl
      echo inner
    End
    It 'succeeded: inner replaces outer'
      When call calls_curl
      The output should equal inner
    End
    It 'succeeded: for child processes too'
      When call calls_in_child
      The output should equal inner
    End
  End
  It 'succeeded: the outer one is back'
    When call calls_in_child
    The line 1 of output should start with 'curl 0'
    The status should equal 6
  End
  It 'succeeded: names with a dash'
    Mock apt-get
      echo "apt-get $*"
    End
    When call calls_dashed install x
    The output should equal 'apt-get install x'
  End
  It 'succeeded: the body sees exported variables only'
    Mock shows
      echo "[$exported][$plain]"
    End
    export exported=1
    plain=2
    run_it() { shows; }
    When call run_it
    The output should equal '[1][]'
  End
  It 'succeeded: the body does not see functions'
    helper() { echo function; }
    Mock shows
      helper 2>/dev/null || echo none
    End
    When call shows
    The output should equal none
  End
  It 'succeeded: an earlier function mock loses'
    both() { echo function; }
    Mock both
      echo mock
    End
    When call both
    The output should equal mock
  End
  It 'succeeded: a later function mock wins'
    Mock both
      echo mock
    End
    both() { echo function; }
    When call both
    The output should equal function
  End
  It 'succeeded: command() of the test intercepts it'
    command() { echo "command $*"; }
    When call calls_curl a
    The output should equal 'command curl a'
  End
  It 'succeeded: preserve counts across calls'
    count=0
    Mock counts
      count=$((count + 1)) text="it's \"\\$count\" "
      %preserve count text:renamed
    End
    twice() {
      counts
      : "$(counts)"
    }
    When call twice
    The variable count should equal 2
    The variable renamed should equal 'it'\''s "\2" '
  End
  It 'succeeded: text in a mock'
    Mock shows
      %text
      #|line $HOME
    End
    When call shows
    The output should equal 'line $HOME'
  End
  It 'succeeded: a mock reads stdin'
    Mock reads
      cat
    End
    Data 'text'
    When call reads
    The output should equal text
  End
  It 'succeeded: a name known at run time only'
    name=late
    Mock "$name"
      echo "late $1"
    End
    When call bash -c 'late x'
    The output should equal 'late x'
  End
  It 'succeeded: a mock that looks at its own name'
    Mock named
      basename "$0"
    End
    When call named
    The output should equal named
  End
End

Describe 'preserved variables'
  change() {
    kept="it's
changed "
    %preserve kept
  }
  It 'succeeded: reach their own example'
    When run change
    The variable kept should equal "it's
changed "
  End
  It 'succeeded: and not the next one'
    kept=mine
    When call true
    The variable kept should equal mine
  End
End
