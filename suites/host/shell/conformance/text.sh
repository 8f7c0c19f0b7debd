# Section 2: Data, Parameters and the directives.

%const GREETING: "hello world"
% ANSWER: 42

reads() { cat; }
counted() { wc -l | tr -d ' '; }

Describe 'Data'
  It 'succeeded: a block'
    Data
      #|first
      #|  indented $HOME
      #|
      #|last
    End
    When call reads
    The output should equal 'first
  indented $HOME

last'
  End
  It 'succeeded: raw'
    Data:raw
      #|$HOME `x` "q" 'q' \ .
    End
    When call reads
    The output should equal "\$HOME \`x\` \"q\" 'q' \\ ."
  End
  It 'succeeded: expand'
    name=world
    Data:expand
      #|hello "$name" $(echo sub)
    End
    When call reads
    The output should equal 'hello "world" sub'
  End
  It 'succeeded: a filter'
    Data | tr a-z A-Z
      #|abc
    End
    When call reads
    The output should equal ABC
  End
  It 'succeeded: text, with a final newline'
    Data 'some text'
    When call counted
    The output should equal 1
  End
  It 'succeeded: a file'
    printf 'from file' >"$SHELLSPEC_WORKDIR/data"
    Data < "$SHELLSPEC_WORKDIR/data"
    When call reads
    The output should equal 'from file'
  End
  It 'succeeded: a function'
    generate() { printf '%s\n' "$@"; }
    Data generate 1 2 3
    When call counted
    The output should equal 3
  End
  It 'succeeded: run reads it too'
    Data 'text'
    When run reads
    The output should equal text
  End
  Describe 'of a group'
    Data 'outer'
    It 'succeeded: reaches its examples'
      When call reads
      The output should equal outer
    End
    It 'succeeded: inner replaces outer'
      Data 'inner'
      When call reads
      The output should equal inner
    End
  End
  It 'succeeded: a line that ends in a backslash ends there'
    Data
      #|first \
      #|second \\
      #|third \
    End
    When call cat
    The line 1 of output should equal 'first \'
    The line 2 of output should equal 'second \\'
    The line 3 of output should equal 'third \'
  End
  It 'succeeded: a line of %text that ends in a backslash ends there'
    script() { %text
      #|first \
      #|second \
    }
    When call script
    The line 1 of output should equal 'first \'
    The line 2 of output should equal 'second \'
  End
  It 'succeeded: after When it is ignored'
    When call reads
    Data 'late'
    The output should equal ''
  End
End

Describe 'Parameters'
  Describe 'block'
    value=expanded
    Parameters
      # a comment
      one 1

      "two words" 2
      $value \
        3
    End
    It "succeeded: row $1 ($2)"
      The value "$1" should be present
      shift
      The value "$1" should be valid number
    End
  End
  Describe 'value'
    Parameters:value a b
    It "succeeded: value $1"
      The value "$1" should match pattern 'a|b'
    End
  End
  Describe 'matrix'
    Parameters:matrix
      x y
      1 2
    End
    It "succeeded: matrix $1$2"
      The value "$1$2" should match pattern '[xy][12]'
    End
  End
  Describe 'dynamic'
    Parameters:dynamic
      for i in 1 2; do
        %data "$i" "$GREETING"
      done
    End
    It "succeeded: dynamic $1"
      The value "$2" should equal 'hello world'
    End
  End
  Describe 'rows in Data:expand'
    Parameters
      row1
    End
    Data:expand
      #|<$1>
    End
    It 'succeeded: Data:expand sees the row'
      When call reads
      The output should equal '<row1>'
    End
  End
  Describe 'a block of quoted :block'
    Parameters:block
      'a|b'
    End
    It 'succeeded: the word block may stand'
      The value "$1" should equal 'a|b'
    End
  End
End

Describe 'directives'
  It 'succeeded: const'
    The variable GREETING should equal 'hello world'
    The variable ANSWER should equal 42
  End
  It 'succeeded: text'
    show() {
      %text
      #|one $HOME
      #|two
    }
    When call show
    The output should equal 'one $HOME
two'
  End
  It 'succeeded: text may be expanded and piped'
    show() {
      name=x
      %text:expand | tr a-z A-Z
      #|hello "$name" $1
    }
    When call show arg
    The output should equal 'HELLO "X" ARG'
  End
  It 'succeeded: text right after the brace'
    show() { %text
      #|inside
    }
    When call show
    The output should equal inside
  End
  It 'succeeded: puts and putsn'
    show() {
      %puts a '\n' b
      %- c
      %putsn d
      %= e
      %printf '%03d' 7
    }
    When call show
    The output should equal 'a \n bcd
e
007'
  End
  It 'succeeded: preserve carries a variable out of run' bash
    changes() {
      count=5
      list=(a 'b c')
      %preserve count list:renamed
    }
    count=1
    When run changes
    The variable count should equal 5
    The variable renamed[1] should equal 'b c'
  End
End

Describe 'Path is not what its author may think'
  It 'succeeded: words without = are ignored'
    Path prepend /opt/bin
    The value a should equal a
  End
End

Describe 'Set'
  unset_variable() { echo "[$no_such_variable]"; }
  It 'succeeded: an option for the evaluation'
    Set 'nounset:on'
    When run unset_variable
    The status should be failure
    The error should include no_such_variable
  End
  It 'succeeded: a shopt option' bash
    Set 'nullglob:on'
    list_nothing() { echo /nonexistent/*; }
    When call list_nothing
    The output should equal ''
  End
End

Describe 'keyword-like lines'
  It 'succeeded: a tab after a word makes it no keyword'
    Describe() { :; }
    Describe	x
    The value a should equal a
  End
End
