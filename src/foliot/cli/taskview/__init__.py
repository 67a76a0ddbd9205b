"""Views of a task while it goes on: what happens, its graph filling in, its end."""
