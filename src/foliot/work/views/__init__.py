"""Views of a task: its document, its story, and why it is in its state."""
