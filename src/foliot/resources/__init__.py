"""Resources: one model per kind, and the reader that turns manifests into them.

Called by everything above. Never touches a store or a network.
"""
