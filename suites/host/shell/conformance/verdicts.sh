# Expectations that mention output, and the warning about output that no expectation mentions.

both() {
  echo out
  echo err >&2
  return "${1:-0}"
}

Describe 'leftovers'
  It 'WARNED: no expectation'
    When call true
  End
  It 'WARNED: stdout that no expectation mentions'
    When call echo out
    The status should be success
  End
  It 'WARNED: stderr that no expectation mentions'
    When call both
    The output should equal out
  End
  It 'succeeded: expectations mention all output'
    When call both 3
    The output should equal out
    The error should equal err
    The status should equal 3
  End
  It 'succeeded: a negated sentence mentions its stream too'
    When call both 3
    The output should not equal x
    The error should not equal x
    The status should not equal 0
  End
  It 'succeeded: should be defined mentions a stream of any content'
    When call both 3
    The output should be defined
    The error should be defined
    The status should be defined
  End
  It 'succeeded: line mentions the output'
    When call echo out
    The line 1 should equal out
  End
  It 'succeeded: result mentions all streams'
    When call both 3
    The result of function true should equal ''
  End
  It 'FAILED: a failure beats a warning'
    When call both
    The output should equal x
  End
  It 'FAILED: a sentence about a variable mentions no stream, and fails'
    When call echo out
    The variable gone should be defined
  End
  It 'WARNED: a sentence about a variable mentions no stream'
    x=1
    When call echo out
    The variable x should be defined
  End
  It 'succeeded: Assert is an expectation'
    When call true
    Assert true
  End
End
