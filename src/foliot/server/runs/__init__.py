"""Runs that clients of this server have asked for."""
