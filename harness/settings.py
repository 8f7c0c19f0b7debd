"""Options, environment and ini become one frozen Settings."""
