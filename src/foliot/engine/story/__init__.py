"""A journal as people read it: a tree of steps and calls, and why it came out so. Pure; used by traces and `why`."""
