"""A private PostgreSQL and a private NATS server, started on free loopback ports and stopped for certain.

Called by tests/conftest.py and `foliot dev services`. Never touches a server that it did not start.
"""
