"""Backends: one file per kind of tool that carries out a call. Reached through the pipeline only."""
