"""The stored state of callers: accounts, sessions, tokens, and the keys of their requests."""
