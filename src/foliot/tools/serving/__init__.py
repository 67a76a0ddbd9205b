"""Foliot as the serving side: tools that answer calls from a message bus, through the same pipeline as any call."""
