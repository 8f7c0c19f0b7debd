# Data, Parameters and the directives.

%const GREETING: "hello world"
% ANSWER: 42

reads() { cat; }
counted() { wc -l | tr -d ' '; }

Describe 'Data'
  It 'succeeded: a block'
    Data
      #|first
      # no text
      #|  indented $HOME
      #|
      #|last
    End # of the text
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
    Data | tr a-z A-Z # in capitals
      #|abc
    End
    When call reads
    The output should equal ABC
  End
  It 'succeeded: a filter of text that is expanded'
    Data:expand | tr a-z A-Z
      #|$((1 + 1))b
    End
    When call reads
    The output should equal 2B
  End
  It 'succeeded: texts, joined by spaces'
    Data 'some text' "$GREETING" ''
    When call reads
    The entire output should equal "some text hello world $SHELLSPEC_LF"
  End
  Describe 'from a file'
    Parameters
      'no line break' 'no line break\n'
      ' a\\b\n' ' a\\b\n'
      'a\n\n\n' 'a\n\n\n'
      '' '\n'
    End
    It "succeeded: has a final newline, and all that it had: $1"
      printf "$1" >"$SHELLSPEC_WORKDIR/data"
      Data < "$SHELLSPEC_WORKDIR/data"
      reads_all() { cat; echo .; }
      When call reads_all
      The output should equal "$(printf "$2.")"
    End
  End
  It 'succeeded: a function'
    generate() { printf '%s\n' "$@"; }
    Data generate 1 2 3
    When call counted
    The output should equal 3
  End
  It 'FAILED: Data from a function that fails'
    generate() { echo text; return 3; }
    Data generate
    When call cat
    The output should equal text
    #> The command of 'Data' ended with status 3
  End
  It 'FAILED: Data through a filter that fails'
    Data | grep b
      #|a
    End
    When run cat
    The output should equal ''
    #> The command of 'Data' ended with status 1
  End
  It 'succeeded: run reads it too'
    Data 'text'
    When run reads
    The output should equal text
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
    End # of the rows
    It "succeeded: row $1 ($2)"
      The value "$1" should be present
      shift
      The value "$1" should be valid number
    End
  End
  Describe 'value'
    Parameters:value a 'b|b' $GREETING # c
    It "succeeded: value $1"
      The value "$1" should match pattern '[!#c]*'
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
        %data "$i" "$GREETING" '' "it's
$i"
      done
    End
    It "succeeded: dynamic $1"
      The value "$2|$3|$4" should equal "hello world||it's
$1"
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
      IFS=,
      %puts a '\n' b
      %- c
      %putsn d d
      %= e
      %printf '%03d' 7
    }
    When call show
    The output should equal 'a \n bcd d
e
007'
  End
  It 'succeeded: logger adds lines to its file'
    log() {
      IFS=,
      %logger one 'two  three'
      %logger four
      logs
    }
    Mock logs
      %logger five
    End
    export SHELLSPEC_LOGFILE="$SHELLSPEC_WORKDIR/logger"
    When call log
    The contents of file "$SHELLSPEC_LOGFILE" should equal "one two  three
four
five"
  End
  It 'succeeded: preserve carries a variable out of run' bash
    changes() {
      text=$'a "b" text="c\'\n\\ $d'
      list=(a 'b c')
      export given=' renamed='
      unset gone
      %preserve text list given:renamed gone
    }
    gone=1
    When run changes
    The variable text should equal $'a "b" text="c\'\n\\ $d'
    The variable list[1] should equal 'b c'
    The variable list should not be exported
    The variable renamed should equal ' renamed='
    The variable renamed should be exported
    The variable given should be undefined
    The variable gone should equal 1
  End
End

Describe 'Path is not what its author may think'
  It 'succeeded: Path ignores words without ='
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
    Set 'nullglob:on' 'sourcepath:off'
    list_nothing() { echo /nonexistent/*; shopt -q sourcepath; }
    When call list_nothing
    The output should equal ''
    The status should be failure
  End
End
