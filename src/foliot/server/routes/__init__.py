"""One module for each noun. Each exports `router`, made by `server.auth.guard.new_router()`, with full paths.

A route makes one call into the rooms below. Who may call it, what a key means and what is told of it stand in
`server/route_table.py`, and nowhere else: a handler without a row there cannot be registered.
"""
