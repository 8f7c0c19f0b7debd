# shellcheck shell=sh
spec_helper_precheck() {
  : minimum_version "0.28.1"
  minimum_version "0.28.1"
}
spec_helper_loaded() {
  :
}
spec_helper_configure() {
  # Available functions: import, before_each, after_each, before_all, after_all
  : import 'support/custom_matcher'
}
shared_helper() { echo "shared:$1"; }
