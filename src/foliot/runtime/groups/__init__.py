"""The verbs of Foliot in groups: see groups.py."""
