"""Server-sent events: what they carry, and how many readers share it."""
