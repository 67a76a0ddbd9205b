"""A server of tools over NATS: calls in, governed execution, results out."""
