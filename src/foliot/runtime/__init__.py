"""The embedded runtime: agents in Python, and the one place where all rooms are put together."""
