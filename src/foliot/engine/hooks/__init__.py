"""Hooks: code of others that is asked before and after the acts of a run. Governance never asks them for permission."""
