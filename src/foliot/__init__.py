"""Foliot: the agent runtime."""

from foliot.version import __version__

__all__ = ["__version__"]
