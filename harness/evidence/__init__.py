"""What was gathered of one test."""
