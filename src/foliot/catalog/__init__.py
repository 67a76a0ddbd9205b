"""The declared resources as a service: what a set of manifests would change, whether it may, and doing it.

Called by the local client and the server. Never reads files (resources/reader.py does) and never prints.
"""
