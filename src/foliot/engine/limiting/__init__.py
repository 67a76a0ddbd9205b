"""Limits on tools that hold over all processes of a store: rates, calls at a time, and circuits of tools in trouble."""
