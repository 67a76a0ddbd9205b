"""Channels: how people outside talk to agents, and how answers reach them. Started by the server."""
