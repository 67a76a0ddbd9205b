"""The one way to a tool's backend: layers, gates, stages, finishers."""
