"""Pieces of runs while they are worked on, for those who watch."""
