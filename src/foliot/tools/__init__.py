"""Calling a tool: the contract, the pipeline every call passes through, and the backends behind it.

Called by the engine through `base.py`. Never writes a journal and never asks a model.
"""
