"""What a run leaves for operators: its exit code and sentence, its events, its lines to count."""
