"""Limits on tools and models over all processes of a store."""
