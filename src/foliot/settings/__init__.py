"""Settings: every value with where it came from, and servers by name."""
