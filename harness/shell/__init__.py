"""The mocked-command tier."""
