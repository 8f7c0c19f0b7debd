# What the report of an example says about errors in the code under test and in the spec.

model() { echo 'about to read'; set -u; echo "model: ${GPU_MODEL}"; }
give_up() { echo 'no driver' >&2; exit 86; }
complain() { echo oops >&2; return "${1:-0}"; }

Describe 'shells that end'
  It 'FAILED: an evaluation ends the shell for an unset variable'
    #> reports.sh:12: Example aborted: its shell ended with exit code
    #> GPU_MODEL
    #> 'When run' evaluates a function that exits.
    When call model
    #>   evaluation: When call model
    #>   stdout: about to read
  End
  It 'FAILED: an evaluation exits'
    true
    #> reports.sh:19: Example aborted: its shell ended with exit code 86 in the evaluation
    When call give_up a
    #>   stderr: no driver
  End
  It 'FAILED: a statement before all expectations ends the shell'
    #> reports.sh:22: Example aborted: its shell ended with exit code 1 before the end
    #> The last line reached was 22, the first line of the example.
    false
  End
  It 'FAILED: a statement after expectations ends the shell'
    When call true
    The status should be success
    The value "$(false; echo x)" should equal x
    exit 3
    #> its shell ended with exit code 3 before the end
    #> The last line reached was 30 (The value "$(false; echo x)" should equal x).
  End
  It 'FAILED: a statement after the evaluation ends the shell'
    When call true
    exit 0
    #> ended with exit code 0
    #> The last line reached was 36 (When call true).
  End
  Describe 'in BeforeEach'
    BeforeEach give_up
    It 'FAILED: BeforeEach ends the shell with a message'
      #> reports.sh:43: Example aborted: BeforeEach 'give_up' exited, and its shell ended with exit code 86.
      #>   stderr: no driver
      When call true
    End
  End
  Describe 'in AfterEach'
    AfterEach 'exit 0'
    It 'FAILED: AfterEach ends the shell without a message'
      #> AfterEach 'exit 0' exited, and its shell ended with exit code 0.
      When call true
    End
  End
  Describe 'in BeforeAll'
    BeforeAll give_up
    It 'FAILED: BeforeAll ends the shell of its group'
      #> BeforeAll 'give_up' of the group that begins at line 56 ended its shell with exit code 86
      #> It wrote to stderr:
      #> no driver
      When call true
    End
  End
End

Describe 'hooks that fail'
  Describe 'before each'
    BeforeEach 'complain 3'
    It 'FAILED: BeforeEach fails with its status and stderr in the report'
      #> reports.sh:70: BeforeEach 'complain 3' failed with status 3.
      #>   stderr: oops
      The value a should equal a
    End
  End
  Describe 'before all'
    BeforeAll 'false'
    It 'FAILED: BeforeAll fails for each example'
      #> BeforeAll 'false' failed, so the example did not run.
      The value a should equal a
    End
  End
End

Describe 'code that writes to stderr'
  It 'FAILED: stderr outside of the evaluation'
    #> The example itself wrote to stderr:
    #> oops
    complain
    The value a should equal a
  End
  It 'WARNED: stderr in Assert'
    #> reports.sh:95: warning: Assert complain
    #>   stderr: oops
    Assert complain
  End
  It 'FAILED: stderr in Assert that fails'
    #> reports.sh:101: Assert complain 2
    #>   status: 2
    #>   stderr: oops
    Assert complain 2
  End
  It 'WARNED: stderr in a function that an expectation calls'
    #> warning: The value a should satisfy complain
    #>   A function in this sentence wrote to stderr: oops
    The value a should satisfy complain
  End
  It 'WARNED: stderr of the evaluation that no expectation mentions'
    #> reports.sh:112: warning: There was output to stderr, and no expectation mentions it:
    #> oops
    #> warning: The status was 2, and no expectation mentions it.
    When call complain 2
    The output should equal ''
  End
  complain
  It 'FAILED: stderr of the group'
    #> A group wrote to stderr:
    #> oops
    The value a should equal a
  End
End

Describe 'expectations that fail'
  It 'FAILED: the report shows the evaluation and both values'
    #> reports.sh:130: The output should equal b
    #>   evaluation: When call echo a
    #>   expected: equal "b"
    #>        got: "a"
    When call echo a
    The output should equal b
  End
  It 'FAILED: the report shows both versions of each line that differs'
    #>     -c
    #>     +b
    The value "a
b" should equal "a
c"
  End
  It 'FAILED: the report shows the unwanted value'
    #>   expected: not include "a"
    The value abc should not include a
  End
  It 'FAILED: the report names the unset subject'
    #>        got: <unset>
    The variable gone should equal ''
  End
  It 'FAILED: the report shows what is at a path'
    cd "$SHELLSPEC_WORKDIR"
    ln -s / folder
    ln -s gone dangling
    mkfifo pipe
    #> got: folder (directory, by symlink)
    The file folder should be file
    #> got: dangling (dangling symlink)
    The file dangling should be exist
    #> got: gone (nothing there)
    The file gone should be exist
    #> got: pipe (pipe)
    The file pipe should be file
    #> got: /dev/null (special file)
    The file /dev/null should be file
    #> got: /etc/passwd (regular file)
    The file /etc/passwd should be directory
  End
  It 'FAILED: the report names an unknown matcher'
    #>   This sentence cannot be read: there is no matcher
    The value a should be friendly
  End
  It 'FAILED: the report shows the second evaluation'
    #> reports.sh:172: There is a second 'When'; an example takes one.
    When call true
    When call true
    The status should be success
  End
End

Describe 'verdicts with a reason'
  It 'SKIPPED: the reason of Skip in the example'
    #> no GPU
    Skip 'no GPU'
  End
  It 'SKIPPED: the reason of the first Skip'
    #> first
    Skip 'first'
    Skip 'second'
  End
  It 'SKIPPED: Skip without a reason'
    #> Temporarily skipped
    Skip
  End
  It 'PENDING: Pending without a reason'
    #> Temporarily pended
    Pending
    The value a should equal b
  End
  xIt 'SKIPPED: an example with x'
    #> Temporarily skipped
    false
  End
  It 'FIXED: the reason of Pending'
    #> The example is marked Pending (a bug), but all its expectations hold; remove the mark.
    Pending 'a bug'
    The value a should equal a
  End
  Describe 'of a group'
    Skip 'outer'
    Describe 'and of one in it'
      Skip 'inner'
      It 'SKIPPED: the reason of the outer Skip'
        #> outer
        false
      End
    End
  End
  Describe 'of a group that is pending'
    Pending 'outer'
    Describe 'and of one in it'
      Pending 'inner'
      It 'PENDING: the reason of the inner Pending'
        #> inner
        The value a should equal b
      End
    End
  End
End

Describe 'matchers of the spec itself, under nounset'
  set -u
  shellspec_syntax 'shellspec_matcher_be_semver'
  shellspec_matcher_be_semver() {
    shellspec_matcher__match() {
      case $SHELLSPEC_SUBJECT in ([0-9]*.[0-9]*) return 0 ;; esac
      SHELLSPEC_EXPECT=semver
      return 1
    }
    shellspec_matcher__failure_message() { shellspec_putsn "wanted: $1 as $2"; }
    shellspec_matcher__failure_message_when_negated() { shellspec_putsn "unwanted: $1"; }
    shellspec_syntax_param count [ $# -eq 0 ] || return 0
    shellspec_matcher_do_match
  }
  It 'succeeded: a custom matcher that matches'
    The value 580.1 should be semver
  End
  It 'FAILED: a custom matcher that does not match'
    #> wanted: 580 as semver
    The value 580 should be semver
  End
  It 'FAILED: a negated custom matcher that matches'
    #> unwanted: 580.1
    The value 580.1 should not be semver
  End
  It 'FAILED: an unknown custom matcher'
    #> there is no matcher 'be nothing'
    The value 580 should be nothing
  End
End

Describe 'a group that ends its shell'
  Describe 'in a statement'
    It 'succeeded: an example above the statement that ends the shell'
      The value a should equal a
    End
    false
    It 'FAILED: an example below the statement that ends the shell'
      #> A statement of the group that begins at line 259 ended its shell with exit code 1
      The value a should equal a
    End
  End
  complain
  It 'FAILED: stderr of a group fails the example after the group'
    #> A group wrote to stderr:
    #> oops
    The value a should equal a
  End
End

Describe 'messages that a matcher of the spec gives by lines'
  shellspec_syntax 'shellspec_matcher_be_listed'
  shellspec_matcher_be_listed() {
    shellspec_matcher__match() {
      SHELLSPEC_EXPECT='a & b'
      [ "$SHELLSPEC_SUBJECT" = 'a & b' ]
    }
    shellspec_syntax_failure_message + 'wanted: "$2"' 'found: $1 and $1'
    shellspec_syntax_failure_message - 'unwanted: $1, $2'
    shellspec_syntax_param count [ $# -eq 0 ] || return 0
    shellspec_matcher_do_match
  }
  It 'succeeded: a matcher with messages matches'
    The value 'a & b' should be listed
    The value 'b & a' should not be listed
  End
  It 'FAILED: a matcher with messages does not match'
    #> wanted: "a & b"
    #> found: $2 & $1 and $2 & $1
    The value '$2 & $1' should be listed
  End
  It 'FAILED: a matcher with messages matches under not'
    #> unwanted: a & b, a & b
    The value 'a & b' should not be listed
  End
End
