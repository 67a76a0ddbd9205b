"""One module for each noun. Each exports `router`, made by `server.access.guard.new_router()`, with full paths.

A route makes one call into the rooms below. Who may call it stands in `server/access/permissions.py`, and nowhere else:
an application with a route that is not in that table does not start.
"""
