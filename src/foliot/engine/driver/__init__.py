"""Driving one run: the lease, the journal, model and tool calls, signals."""
