"""Secrets of tools: where they come from, how they become headers, how they are masked."""
