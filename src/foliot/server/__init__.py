"""The HTTP server: what others reach Foliot by. Called by cli/; it decides nothing that the rooms below can decide."""
