# Function mocks and command mocks.

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
  It 'succeeded: the innermost function mock wins'
    curl() { echo inner; }
    When call calls_curl
    The output should equal inner
  End
  It 'succeeded: a child process does not see a function mock'
    When call bash -c 'type -t calls_curl'
    The output should equal ''
    The status should be failure
  End
  It 'succeeded: a child process sees a function mock after export -f' bash
    export -f curl
    When call calls_in_child z
    The output should equal 'mocked z'
  End
End

Describe 'commands of the shell that a spec redefines' bash
  shellspec_syntax 'shellspec_matcher_be_odd'
  shellspec_matcher_be_odd() {
    shellspec_matcher__match() { [[ $SHELLSPEC_SUBJECT == odd ]]; }
    shellspec_syntax_param count [ $# -eq 0 ] || return 0
    shellspec_matcher_do_match
  }
  shellspec_syntax 'shellspec_subject_same'
  shellspec_subject_same() {
    SHELLSPEC_SUBJECT=$1
    shellspec_syntax_dispatch modifier "${@:2}"
  }
  holds() { [[ $(</dev/stdin) == "$holds" ]]; }
  changes() { text=set; }
  leaves() { builtin echo "$1"; (builtin exit "$2"); }
  for name in echo printf read declare typeset readonly exit trap shopt mapfile export set shift unset \
    cd type hash kill test true false wait jobs pwd umask sh rm cat ls tee mv cp mkdir sleep; do
    builtin eval "$name() { builtin echo '$name was called' >&2; builtin return 99; }"
  done
  Path here=/etc
  BeforeAll 'all=1'
  AfterAll ':'
  BeforeEach 'each=1'
  AfterEach ':'
  It 'succeeded: only the code under test runs redefined commands'
    When call rm -rf /never
    The error should equal 'rm was called'
    The status should equal 99
  End
  It 'SKIPPED: Skip runs no redefined command'
    Skip
  End
  It 'PENDING: Pending runs no redefined command'
    Pending
    The value a should equal b
  End
  It 'succeeded: waiting for jobs runs no redefined command'
    job() { { builtin read -t 0.1 <>/dev/fd/201 || :; } & }
    When call job
    The status should be success
  End
  It 'succeeded: directives run no redefined command'
    words() {
      %puts a
      %putsn b
      %printf '%s' c
      %text:expand
      #|$each
      %logger x
    }
    When call words
    The output should equal "ab${SHELLSPEC_LF}c1"
  End
  It 'succeeded: Mock runs no redefined command'
    Mock harness-a
      a=$1
      %preserve a
    End
    Mock harness_b
      %puts "$1"
    End
    mocked() { harness-a 1; harness_b b; }
    When call mocked
    The output should equal b
  End
  It 'succeeded: When run command runs no redefined command'
    When run command env -i
    The status should be success
  End
  It 'succeeded: When run source runs no redefined command'
    %puts 'x=1' >"$SHELLSPEC_WORKDIR/x.sh"
    When run source "$SHELLSPEC_WORKDIR/x.sh"
    The status should be success
  End
  Describe 'below'
    BeforeCall 'text=before'
    AfterCall ':'
    BeforeRun ':'
    AfterRun ':'
    Set 'noglob:off' 'nullglob:on'
    Data 'input'
    Parameters
      1 2
    End
    It 'succeeded: hooks, options, data and expectations of a call run no redefined command'
      When call changes
      The variable text should equal set
      The contents of file here should be undefined
      The path here should be directory
      The path / should not be empty directory
      The same odd should be odd
      The value even should not be odd
      The value odd should satisfy holds odd
      The result of function changes should equal ''
      The value "$all$1$2" should equal 112
      Assert changes
      Skip if 'never' [ a = b ]
    End
    It 'succeeded: hooks, options and data of a run run no redefined command'
      When run leaves a 3
      The output should equal a
      The status should equal 3
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
    It 'succeeded: the inner Mock replaces the outer Mock'
      When call calls_curl
      The output should equal inner
    End
    It 'succeeded: the inner Mock replaces the outer Mock for child processes too'
      When call calls_in_child
      The output should equal inner
    End
  End
  It 'succeeded: the outer Mock works again after the inner group'
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
  It 'succeeded: the body sees only exported variables'
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
  It 'succeeded: Mock replaces an earlier function mock'
    both() { echo function; }
    Mock both
      echo mock
    End
    When call both
    The output should equal mock
  End
  It 'succeeded: Mock replaces an earlier function mock with a comma in its name' bash
    never,there() { echo function; }
    Mock 'never,there'
      echo mock
    End
    When call never,there
    The output should equal mock
  End
  It 'succeeded: a mock with a dash in its name works in POSIX mode' bash
    set -o posix
    Mock apt-get
      echo "apt-get $1"
    End
    When call calls_dashed install
    The output should equal 'apt-get install'
  End
  It 'succeeded: the body begins with the options of a new shell' bash
    Mock begins
      false
      a=$(false | true; echo $?$no_such)
      echo "$a" /et[c] ${words[@]}
    End
    words=many
    strict() { set -euf -o pipefail; trap 'echo trapped' ERR; begins; }
    When call strict
    The output should equal '0 /etc'
  End
  It 'succeeded: a later function mock replaces a Mock'
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
  It 'succeeded: a Mock may have a name that is known only at run time'
    name=late
    Mock "$name"
      echo "late $1"
    End
    When call bash -c 'late x'
    The output should equal 'late x'
  End
  It 'succeeded: a mock can read its own name'
    Mock named
      basename "$0"
    End
    When call named
    The output should equal named
  End
  It 'succeeded: only a command that looks for a file finds a mock of a builtin'
    Mock printf
      echo mocked
    End
    f() { printf 'real\n'; env printf x; }
    When call f
    The output should equal "real
mocked"
  End
End

Describe 'preserved variables'
  change() {
    kept="it's
changed "
    %preserve kept
  }
  It 'succeeded: a preserved variable reaches its own example'
    When run change
    The variable kept should equal "it's
changed "
  End
  It 'succeeded: a preserved variable does not reach the next example'
    kept=mine
    When call true
    The variable kept should equal mine
  End
End
