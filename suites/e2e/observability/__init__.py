"""What a run leaves for operators: its exit code and error message, its events, its log lines."""
