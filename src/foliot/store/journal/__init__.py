"""Run journals: the protocol, and where they are kept."""
