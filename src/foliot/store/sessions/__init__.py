"""Sessions, their turns, and the inboxes of sessions and runs."""
