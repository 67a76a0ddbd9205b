"""The one place that states the version; the build and `foliot version` read it here."""

__version__ = "0.1.0"
