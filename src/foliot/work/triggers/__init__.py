"""Triggers: schedules and webhooks, which make tasks without a caller."""
