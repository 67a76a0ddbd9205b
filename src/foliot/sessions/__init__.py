"""Conversations that last: sessions, their turns, and what is said to them while an agent works."""
