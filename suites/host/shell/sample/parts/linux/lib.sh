# sourced by hooks and groups
FROM_LIB="lib value"
