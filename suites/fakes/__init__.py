"""Fakes that several suites share: stateful objects in the place of a clock or a program."""
