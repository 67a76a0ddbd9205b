"""A deterministic simulator of the real engine: virtual time, seeded chance, processes that die at the worst moments.

Called by tests, `make simulate` and people who write their own stores or tools; see simulation.py. It never touches the
real clock, a thread, a file or a socket.
"""
