"""The scripted model: its scripts, their reader, and the built-in one."""
