"""Requests with an `Idempotency-Key` are done once, by whichever server hears of them, and answered the same way."""
