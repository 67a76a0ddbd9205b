"""Declared resources: documents, their changes in one transaction, and the feed of changes."""
