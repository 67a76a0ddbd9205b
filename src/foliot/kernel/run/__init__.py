"""One agent at work: its events, the state they fold to, and what to do next."""
