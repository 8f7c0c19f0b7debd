# The example provisioner in the spec language: what needs no state of a node.

Describe 'the example provisioner'
  Include suites/e2e/shell_provisioner/provision.sh

  Describe 'driver_family'
    Parameters
      cuda        cuda
      cuda-lts    cuda
      grid-v20    grid
      other       other
    End

    It "puts $1 into the family $2"
      When call driver_family "$1"
      The output should equal "$2"
    End
  End

  Describe 'record_field'
    write_text() {
      RECORD=$SHELLSPEC_TMPBASE/record
      %text >"$RECORD"
      #|kernel=6.1.0-56-cloud-amd64
      #|kernel=later
      #|driver_version=
    }
    Before write_text

    It 'returns the first of two values'
      When call record_field kernel
      The output should equal 6.1.0-56-cloud-amd64
    End

    It 'returns nothing for a field without a value'
      When call record_field driver_version
      The output should equal ''
      The status should be success
    End

    It 'fails without a record'
      removed() { rm "$RECORD" && record_field kernel; }
      When call removed
      The status should be failure
    End
  End

  Describe 'retry'
    OUTCOME=/dev/null
    sleep() { %putsn "waits $1"; }
    fails() { %putsn "tries $1"; return 1; }

    It 'waits between attempts and not after the last one'
      When call retry 2 7 fails now
      The lines of output should equal 4
      The line 2 of output should equal 'waits 7'
      The line 4 of output should equal 'gpu-node: gave up after 2 attempts: fails now'
      The status should equal 1
    End

    It 'stops at the first success'
      When call retry 5 7 true
      The output should equal ''
      The status should be success
    End
  End

  Describe 'driver_image'
    It 'is named by kind, version and build'
      DRIVER_KIND=grid DRIVER_VERSION=1.2 DRIVER_SHA=3
      When call driver_image
      The output should equal 'mcr.microsoft.com/aks/aks-gpu-grid:1.2-3'
    End
  End
End
