"""Fences around programs that are not trusted: the protocol in base.py, a backend in each module beside it."""
