Describe 'params'
  Include ./parts/linux/lib.sh
  Parameters
    $FROM_LIB 1
    "$FROM_LIB two" 2
    'lit $x' 3
    a\ b 4
    # comment
    "multi" \
      5
  End
  It "row $1 $2"
    second=$2
    shift
    When call echo "$1"
    The output should equal "$second"
  End
  Describe 'nested'
    Parameters
      z 9
    End
    It "n $1"
      The variable FROM_LIB should equal 'lib value'
      The value "$#" should not equal 1
    End
  End
End
