"""Asking a model: gateways that speak each provider's wire protocol, and what makes them dependable.

Called by the engine through `base.py`. Never sees a journal or a tool's backend.
"""
