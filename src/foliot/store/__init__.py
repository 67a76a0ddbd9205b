"""Durable storage: resources, secrets, journals and blobs, on SQLite and PostgreSQL.

Called by engine, work, sessions, catalog and the composition root. Never decides what work to do, and never lets a
driver's own exception or a driver's own SQL dialect leave the room.
"""
