"""Connections, requests and answers: bounds, heads, queries, bodies, errors."""
