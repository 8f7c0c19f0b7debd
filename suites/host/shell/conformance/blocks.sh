# Blocks, marks and hooks of specs, and the state that a group passes to its examples.

top=outside
counter() { echo "$count"; }

Describe 'groups'
  top=inside
  helper() { echo outer; }

  Context 'nested with Context'
    helper() { echo inner; }
    It 'succeeded: the innermost definition wins'
      When call helper
      The output should equal inner
      The variable top should equal inside
    End
  End

  ExampleGroup 'nested with ExampleGroup'
    Specify 'succeeded: definitions of a group do not exist after its End'
      When call helper
      The output should equal outer
    End
    Example 'succeeded: Example is an example'
      The value a should equal a
    End
  End

  It 'succeeded: an example may change a variable of its group'
    top=changed
    The variable top should equal changed
  End
  It 'succeeded: the next example sees the old value of the variable'
    The variable top should equal inside
  End

  It 'succeeded: an example sees only definitions above it'
    The variable later should be undefined
  End
  later=set
  It 'succeeded: a statement between examples runs before later examples'
    The variable later should equal set
  End
End

It 'succeeded: an example at the top level'
  The variable top should equal outside
End

It
  The value unnamed should equal unnamed
End

Describe 'bodies are functions'
  It 'succeeded: local and return work'
    local mine=1
    The variable mine should equal 1
    [ "$mine" = 1 ] && return
    The value unreached should equal x
  End
  It 'succeeded: statements, loops and heredocs between the lines'
    for name in a b; do
      if [ "$name" = b ]; then
        The value "$name" should equal b
      fi
    done
    cat >"$SHELLSPEC_WORKDIR/heredoc" <<'TEXT'
line
TEXT
    The contents of file "$SHELLSPEC_WORKDIR/heredoc" should equal line
    rm -f "$SHELLSPEC_WORKDIR/heredoc"
  End
  It 'FAILED: a failing plain command after When run aborts'
    When run true
    The status should equal 0
    false
  End
  It 'FAILED: a failing plain command after Assert aborts'
    Assert true
    false
  End
  It 'succeeded: stdin and stdout of a plain statement'
    echo "shown: $(cat)"
    The value a should equal a
  End
  It 'succeeded: errexit ignores a failing condition'
    false || true
    if false; then :; fi
    The value a should equal a
  End
  It 'succeeded: braces, quotes # and such in a name $HOME "x"'
    The value a should equal a # a comment
  End
End

Describe 'statements of a group'
  echo complaint >&2
  It 'FAILED: stderr of a group fails its next example'
    The value a should equal a
  End
  It 'succeeded: stderr of a group does not fail the example after the next'
    The value a should equal a
  End
End

Describe 'examples that a signal ends'
  It 'FAILED: a signal ends this example'
    sh -c 'kill -KILL "$PPID"'
  End
  It 'succeeded: the example after a killed example passes'
    The value a should equal a
  End
End

Describe 'marks'
  It 'PENDING: an example with an empty body is a Todo'
  End
  It 'PENDING: an example with only comments is a Todo'
    #> Not yet implemented
  End
  Todo 'PENDING: Todo'
  xIt 'SKIPPED: xIt skips an example'
    The value a should equal b
  End
  xDescribe 'x skips a group'
    It 'SKIPPED: xDescribe skips the examples of its group'
      The value a should equal b
    End
  End
  fIt 'succeeded: fIt only focuses an example'
    The value a should equal a
  End
  It 'SKIPPED: Skip in an example'
    The value a should equal a
    Skip 'a reason'
    The value a should equal b
    The variable gone should be defined
    The path /no/such should be exist
    The contents of file /etc/passwd should equal ''
    The value a should satisfy false
    The value a should equal
    Assert false
    Pending
    Skip 'another'
    #> a reason
  End
  It 'SKIPPED: When does not run after Skip'
    Skip
    When call no_such_function
    The status should be success
  End
  It 'FAILED: a failure before Skip fails the example'
    The value a should equal b
    Skip 'too late'
  End
  It 'SKIPPED: Skip if'
    Skip if 'true is true' true
    The value a should equal b
  End
  It 'succeeded: Skip if with only a reason does not skip'
    Skip if 'true'
    The value a should equal a
  End
  It 'succeeded: Skip if with a command that expands to nothing does not skip'
    none=
    Skip if 'nothing is true' $none
    The value a should equal a
  End
  It 'succeeded: Skip if with a failing command does not skip'
    Skip if 'false is not true' false
    The value a should equal a
  End
  It 'succeeded: the command of Skip if changes no variable of the example'
    changes() {
      inside=1
      cd /
      echo out
      false
    }
    Skip if 'never' changes
    The variable inside should be undefined
    The variable PWD should not equal /
  End
  It 'FAILED: the command of Skip if writes to stderr'
    Skip if 'never' no_such_command
    The value a should equal a
    #> no_such_command
  End
  It 'SKIPPED: a statement after Skip writes to stderr'
    Skip
    echo err >&2
    The value a should equal b
  End
  It 'FAILED: plain statements after Skip still run'
    Skip 'but'
    false
  End
  It 'SKIPPED: Skip inside if'
    if true; then
      Skip 'conditional'
    fi
    The value a should equal b
  End
  Describe 'Skip in a group'
    It 'succeeded: an example above Skip in its group runs'
      The value a should equal a
    End
    Skip 'from here on'
    It 'SKIPPED: an example below Skip in its group'
      The value a should equal b
    End
    Describe 'nested'
      It 'SKIPPED: an example in a nested group below Skip'
        false
      End
    End
  End
  It 'FAILED: a failure before Pending fails the example'
    The value a should equal b
    Pending 'too late'
  End
  Describe 'Pending and hooks that fail'
    Pending 'not done'
    AfterEach 'false'
    It 'FAILED: a hook after a pending example fails'
      The value a should equal b
    End
    Describe 'before it'
      BeforeEach 'false'
      It 'FAILED: a hook before a pending example fails'
        The value a should equal b
      End
    End
  End
  It 'FAILED: an abort after Pending fails the example'
    Pending 'not done'
    false
  End
  It 'PENDING: Pending before a warning'
    Pending 'not done'
    When call echo output
  End
End

Describe 'hooks'
  log() { printf '%s ' "$1" >>"$SHELLSPEC_WORKDIR/log"; }
  read_log() { cat "$SHELLSPEC_WORKDIR/log"; }

  Describe 'inline'
    BeforeEach 'one=1; two=2'
    It 'succeeded: statements in a hook reach the example'
      The variable one should equal 1
      The variable two should equal 2
    End
  End
  Describe 'errexit is off in hooks'
    BeforeAll 'false; true'
    BeforeEach 'false; true'
    AfterEach 'false; true'
    It 'succeeded: only the last command of a hook decides its status'
      The value a should equal a
    End
  End
  Describe 'AfterEach fails'
    AfterEach 'false'
    It 'FAILED: a failing AfterEach fails an example whose expectations pass'
      The value a should equal a
    End
  End
  Describe 'a hook that fails ends the others of its kind'
    rm -f "$SHELLSPEC_WORKDIR/log"
    Describe 'before all'
      BeforeAll 'log all1' 'false' 'log never'
      It 'FAILED: the second BeforeAll hook fails'
        log never
      End
    End
    Describe 'before each'
      BeforeEach 'log each1' 'false' 'log never'
      It 'FAILED: the second BeforeEach hook fails'
        log never
      End
    End
    Describe 'after each'
      AfterEach 'log never' 'false' 'log after3'
      It 'FAILED: the second AfterEach hook fails'
        log body
        The value a should equal a
      End
    End
    It 'succeeded: hooks after a failed hook did not run'
      When call read_log
      The output should equal 'all1 each1 body after3 '
    End
  End
  Describe 'AfterEach of an aborted example'
    rm -f "$SHELLSPEC_WORKDIR/log"
    AfterEach 'log after'
    It 'FAILED: AfterEach does not run for an aborted example'
      false
    End
    It 'succeeded: AfterEach of an aborted example did not run'
      The file "$SHELLSPEC_WORKDIR/log" should not be exist
    End
  End
  Describe 'BeforeAll'
    times=0
    BeforeAll 'times=$((times + 1))'
    It 'succeeded: BeforeAll has run before the first example'
      The variable times should equal 1
    End
    It 'succeeded: BeforeAll has not run again before the second example'
      The variable times should equal 1
    End
    Describe 'nested'
      It 'succeeded: BeforeAll has not run again before a nested group'
        The variable times should equal 1
      End
    End
  End
  Describe 'BeforeAll fails'
    BeforeAll 'false'
    It 'FAILED: an example below a failed BeforeAll'
      The value a should equal a
    End
  End
  Describe 'AfterAll'
    AfterAll 'echo done >"$SHELLSPEC_WORKDIR/after-all"'
    It 'succeeded: AfterAll has not run during its group'
      The file "$SHELLSPEC_WORKDIR/after-all" should not be exist
    End
  End
  It 'succeeded: AfterAll has run when its group is left'
    The contents of file "$SHELLSPEC_WORKDIR/after-all" should equal done
  End

  Describe 'around the evaluation'
    BeforeCall 'echo before'
    AfterCall 'echo after'
    It 'succeeded: output of BeforeCall and AfterCall counts as output of the evaluation'
      When call echo body
      The output should equal 'before
body
after'
    End
    It 'succeeded: AfterCall needs status 0'
      When call eval 'echo body; false'
      The output should equal 'before
body'
      The status should be failure
    End
    It 'succeeded: BeforeCall of the example runs after BeforeCall of the group'
      BeforeCall 'echo own' # of two
      When call echo body
      The lines of output should equal 4
      The line 2 of output should equal own
    End
    It 'succeeded: BeforeCall and AfterCall do not run for When run'
      When run echo body
      The output should equal body
    End
  End
  Describe 'a failing BeforeCall'
    BeforeCall 'return 9'
    It 'succeeded: a failing BeforeCall cancels the evaluation and sets its status'
      When call echo body
      The output should equal ''
      The status should equal 9
    End
  End
  Describe 'a failing AfterCall'
    AfterCall 'return 9'
    It 'succeeded: a failing AfterCall sets the status'
      When call echo body
      The output should equal body
      The status should equal 9
    End
  End
  Describe 'around run'
    BeforeRun 'inside=yes'
    AfterRun 'echo "after $inside"'
    It 'succeeded: BeforeRun and AfterRun run in the subshell of When run'
      When run echo body
      The output should equal 'body
after yes'
      The variable inside should be undefined
    End
    It 'succeeded: AfterRun needs status 0'
      When run eval 'echo body; (exit 7)'
      The output should equal body
      The status should equal 7
    End
  End
  Describe 'after other programs'
    AfterRun 'echo after'
    It 'succeeded: AfterRun runs after When run command'
      When run command printf 'body\n'
      The output should equal "body${SHELLSPEC_LF}after"
    End
    It 'succeeded: AfterRun runs after When run script'
      echo 'echo "$1"' >"$SHELLSPEC_WORKDIR/body.sh"
      chmod 755 "$SHELLSPEC_WORKDIR/body.sh"
      When run script "$SHELLSPEC_WORKDIR/body.sh" body
      The output should equal "body${SHELLSPEC_LF}after"
    End
  End
  Describe 'a failing BeforeRun'
    BeforeRun 'return 9' 'echo never'
    It 'succeeded: a failing BeforeRun cancels the evaluation and sets its status'
      When run echo body
      The output should equal ''
      The status should equal 9
    End
  End
  Describe 'a failing AfterRun'
    AfterRun 'echo never' 'return 9'
    It 'succeeded: a failing AfterRun sets the status'
      When run echo body
      The output should equal body
      The status should equal 9
    End
  End
End

Describe 'errexit is off in a call, and on after the call'
  options() { echo "$-"; }
  without_errexit() { set +e; }
  It 'succeeded: usual call'
    When call options
    The output should not include e
  End
  It 'succeeded: call with a hook and an option'
    Set 'errexit:on'
    BeforeCall true
    When call options
    The output should not include e
  End
  It 'FAILED: command that fails after the code has turned errexit off'
    When call without_errexit
    false
    The status should be success
  End
End

Describe 'Set'
  It 'FAILED: an option that is neither on nor off'
    Set 'errexit:maybe'
    When call true
    The status should be success
    #> 'errexit:maybe' ends neither in ':on' nor in ':off'
  End
End

Describe 'Assert'
  It 'succeeded: status 0'
    Assert test a = a # b
  End
  fails_early() {
    false
    true
  }
  It 'FAILED: a command in Assert fails'
    Assert fails_early
  End
  It 'FAILED: Assert without a command'
    Assert
    #> 'Assert' names no command
  End
  It 'succeeded: Assert runs in a subshell'
    changes() { inside=1; }
    Assert changes
    The variable inside should be undefined
  End
End

Describe 'Include of a name'
  echo 'named=$__SOURCED__' >named.sh
  Include named.sh
  It 'succeeded: Include of a name reads the file in the working directory'
    The variable named should equal named.sh
  End
End

Describe 'stdin'
  is_empty() { [ -z "$(cat)" ]; }
  BeforeAll is_empty
  AfterAll is_empty
  BeforeEach is_empty
  AfterEach is_empty
  It 'succeeded: stdin of hooks and conditions is empty'
    Assert is_empty
    Skip if 'never' eval '! is_empty'
    The value '' should satisfy is_empty
  End
  It 'succeeded: hooks and conditions do not read the file of the spec'
    The value a should equal a
  End
End

Describe 'Include'
  printf '%s\n' 'loaded="$__SOURCED__"' 'first=$1' '${__SOURCED__:+return}' 'ran=yes' \
    >"$SHELLSPEC_WORKDIR/library.sh"
  Include "$SHELLSPEC_WORKDIR/library.sh" argument
  It 'succeeded: __SOURCED__ contains the path of the file and ends the script early'
    The variable loaded should end with library.sh
    The variable first should equal argument
    The variable ran should be undefined
    The variable __SOURCED__ should be undefined
  End
End

Describe 'Dump'
  It 'succeeded: Dump shows the output and status of the evaluation'
    captured() { echo out; echo err >&2; return 3; }
    When call captured
    Dump >"$SHELLSPEC_WORKDIR/dump"
    The contents of file "$SHELLSPEC_WORKDIR/dump" should equal '[stdout]
out

[stderr]
err

[status] 3'
    The result of function true should be defined
  End
End
