"""Tasks: accepted, pinned, advanced, listed."""
