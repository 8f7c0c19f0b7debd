# Section 6: what claims a stream, and what is left over.

both() {
  echo out
  echo err >&2
  return "${1:-0}"
}

Describe 'leftovers'
  It 'WARNED: no expectation'
    When call true
  End
  It 'WARNED: unclaimed stdout'
    When call echo out
    The status should be success
  End
  It 'WARNED: unclaimed stderr'
    When call both
    The output should equal out
  End
  It 'succeeded: all claimed'
    When call both 3
    The output should equal out
    The error should equal err
    The status should equal 3
  End
  It 'succeeded: a negated sentence claims its stream too'
    When call both 3
    The output should not equal x
    The error should not equal x
    The status should not equal 0
  End
  It 'succeeded: should be defined claims a stream of any content'
    When call both 3
    The output should be defined
    The error should be defined
    The status should be defined
  End
  It 'succeeded: line claims the output'
    When call echo out
    The line 1 should equal out
  End
  It 'succeeded: result claims all'
    When call both 3
    The result of function true should equal ''
  End
  It 'FAILED: a failure beats a warning'
    When call both
    The output should equal x
  End
  It 'FAILED: a variable claims nothing, and its own failure counts'
    When call echo out
    The variable gone should be defined
  End
  It 'WARNED: a variable claims nothing'
    x=1
    When call echo out
    The variable x should be defined
  End
  It 'succeeded: Assert is an expectation'
    When call true
    Assert true
  End
End
