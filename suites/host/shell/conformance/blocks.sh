# Sections 1 and 2: blocks, marks, hooks and what a group hands to its examples.

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
    Specify 'succeeded: definitions are gone at End'
      When call helper
      The output should equal outer
    End
    Example 'succeeded: Example is an example'
      The value a should equal a
    End
  End

  It 'succeeded: what an example sets is its own'
    top=changed
    The variable top should equal changed
  End
  It 'succeeded: and gone in the next'
    The variable top should equal inside
  End

  It 'succeeded: an example sees only what is above it'
    The variable later should be undefined
  End
  later=set
  It 'succeeded: a statement between examples runs where it stands'
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
  It 'succeeded: errexit does not see a condition'
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
  It 'FAILED: their stderr fails the next example'
    The value a should equal a
  End
  It 'succeeded: and only that'
    The value a should equal a
  End
End

Describe 'examples that a signal ends'
  It 'FAILED: the one'
    sh -c 'kill -KILL "$PPID"'
  End
  It 'succeeded: but not the next, for what the shell said of it'
    The value a should equal a
  End
End

Describe 'marks'
  It 'PENDING: an empty body is a Todo'
  End
  It 'PENDING: a body of comments is a Todo'
    #> Not yet implemented
  End
  Todo 'PENDING: Todo'
  xIt 'SKIPPED: x skips'
    The value a should equal b
  End
  xDescribe 'x skips a group'
    It 'SKIPPED: in it'
      The value a should equal b
    End
  End
  fIt 'succeeded: f is only focus'
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
  It 'SKIPPED: Skip keeps When from running'
    Skip
    When call no_such_function
    The status should be success
  End
  It 'FAILED: a failure before Skip counts'
    The value a should equal b
    Skip 'too late'
  End
  It 'SKIPPED: Skip if'
    Skip if 'true is true' true
    The value a should equal b
  End
  It 'succeeded: Skip if, with a reason alone'
    Skip if 'true'
    The value a should equal a
  End
  It 'succeeded: Skip if, with a command that expands to nothing'
    none=
    Skip if 'nothing is true' $none
    The value a should equal a
  End
  It 'succeeded: Skip if not'
    Skip if 'false is not true' false
    The value a should equal a
  End
  It 'succeeded: the command of Skip if changes nothing here'
    changes() {
      inside=1
      cd /
      echo out
      echo err >&2
      false
    }
    Skip if 'never' changes
    The variable inside should be undefined
    The variable PWD should not equal /
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
    It 'succeeded: above it nothing is skipped'
      The value a should equal a
    End
    Skip 'from here on'
    It 'SKIPPED: below it'
      The value a should equal b
    End
    Describe 'nested'
      It 'SKIPPED: below it, nested'
        false
      End
    End
  End
  It 'FAILED: a failure before Pending counts'
    The value a should equal b
    Pending 'too late'
  End
  Describe 'Pending and hooks that fail'
    Pending 'not done'
    AfterEach 'false'
    It 'FAILED: by the hook after the example'
      The value a should equal b
    End
    Describe 'before it'
      BeforeEach 'false'
      It 'FAILED: by the hook before the example'
        The value a should equal b
      End
    End
  End
  It 'FAILED: an abort under Pending'
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
    It 'succeeded: only the last status counts'
      The value a should equal a
    End
  End
  Describe 'AfterEach fails'
    AfterEach 'false'
    It 'FAILED: after a success'
      The value a should equal a
    End
  End
  Describe 'a hook that fails ends the others of its kind'
    rm -f "$SHELLSPEC_WORKDIR/log"
    Describe 'before all'
      BeforeAll 'log all1' 'false' 'log never'
      It 'FAILED: for all by the second'
        log never
      End
    End
    Describe 'before each'
      BeforeEach 'log each1' 'false' 'log never'
      It 'FAILED: by the second'
        log never
      End
    End
    Describe 'after each'
      AfterEach 'log never' 'false' 'log after3'
      It 'FAILED: by the second'
        log body
        The value a should equal a
      End
    End
    It 'succeeded: the others were left out'
      When call read_log
      The output should equal 'all1 each1 body after3 '
    End
  End
  Describe 'AfterEach of an aborted example'
    rm -f "$SHELLSPEC_WORKDIR/log"
    AfterEach 'log after'
    It 'FAILED: does not run'
      false
    End
    It 'succeeded: so nothing is logged'
      The file "$SHELLSPEC_WORKDIR/log" should not be exist
    End
  End
  Describe 'BeforeAll'
    times=0
    BeforeAll 'times=$((times + 1))'
    It 'succeeded: has run'
      The variable times should equal 1
    End
    It 'succeeded: once'
      The variable times should equal 1
    End
    Describe 'nested'
      It 'succeeded: once, also for nested groups'
        The variable times should equal 1
      End
    End
  End
  Describe 'BeforeAll fails'
    BeforeAll 'false'
    It 'FAILED: every example below'
      The value a should equal a
    End
  End
  Describe 'AfterAll'
    AfterAll 'echo done >"$SHELLSPEC_WORKDIR/after-all"'
    It 'succeeded: has not run yet'
      The file "$SHELLSPEC_WORKDIR/after-all" should not be exist
    End
  End
  It 'succeeded: AfterAll has run when its group is left'
    The contents of file "$SHELLSPEC_WORKDIR/after-all" should equal done
  End

  Describe 'around the evaluation'
    BeforeCall 'echo before'
    AfterCall 'echo after'
    It 'succeeded: their output counts as its own'
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
    It 'succeeded: those of the example are the inner ones'
      BeforeCall 'echo own' # of two
      When call echo body
      The lines of output should equal 4
      The line 2 of output should equal own
    End
    It 'succeeded: they do not concern run'
      When run echo body
      The output should equal body
    End
  End
  Describe 'a failing BeforeCall'
    BeforeCall 'return 9'
    It 'succeeded: cancels the evaluation and sets the status'
      When call echo body
      The output should equal ''
      The status should equal 9
    End
  End
  Describe 'a failing AfterCall'
    AfterCall 'return 9'
    It 'succeeded: sets the status'
      When call echo body
      The output should equal body
      The status should equal 9
    End
  End
  Describe 'around run'
    BeforeRun 'inside=yes'
    AfterRun 'echo "after $inside"'
    It 'succeeded: they run in its subshell'
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
    It 'succeeded: a command'
      When run command printf 'body\n'
      The output should equal "body${SHELLSPEC_LF}after"
    End
    It 'succeeded: a script'
      echo 'echo "$1"' >"$SHELLSPEC_WORKDIR/body.sh"
      chmod 755 "$SHELLSPEC_WORKDIR/body.sh"
      When run script "$SHELLSPEC_WORKDIR/body.sh" body
      The output should equal "body${SHELLSPEC_LF}after"
    End
  End
  Describe 'a failing BeforeRun'
    BeforeRun 'return 9' 'echo never'
    It 'succeeded: cancels the evaluation and sets the status'
      When run echo body
      The output should equal ''
      The status should equal 9
    End
  End
  Describe 'a failing AfterRun'
    AfterRun 'echo never' 'return 9'
    It 'succeeded: sets the status'
      When run echo body
      The output should equal body
      The status should equal 9
    End
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
  It 'FAILED: a command in it that fails'
    Assert fails_early
  End
  It 'succeeded: runs in a subshell'
    changes() { inside=1; }
    Assert changes
    The variable inside should be undefined
  End
End

Describe 'Include of a name'
  echo 'named=$__SOURCED__' >named.sh
  Include named.sh
  It 'succeeded: takes the file of the working directory'
    The variable named should equal named.sh
  End
End

Describe 'stdin'
  is_empty() { [ -z "$(cat)" ]; }
  BeforeAll is_empty
  AfterAll is_empty
  BeforeEach is_empty
  AfterEach is_empty
  It 'succeeded: of hooks and conditions is empty'
    Assert is_empty
    Skip if 'never' eval '! is_empty'
    The value '' should satisfy is_empty
  End
  It 'succeeded: and the file goes on'
    The value a should equal a
  End
End

Describe 'Include'
  printf '%s\n' 'loaded="$__SOURCED__"' 'first=$1' '${__SOURCED__:+return}' 'ran=yes' \
    >"$SHELLSPEC_WORKDIR/library.sh"
  Include "$SHELLSPEC_WORKDIR/library.sh" argument
  It 'succeeded: __SOURCED__ is the file, and stops the script'
    The variable loaded should end with library.sh
    The variable first should equal argument
    The variable ran should be undefined
    The variable __SOURCED__ should be undefined
  End
End

Describe 'Dump'
  It 'succeeded: shows what was captured'
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
