"""A journal as people read it: trace, why, replay, fork."""
