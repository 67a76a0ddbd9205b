"""Gateways, one for each provider's API, and the translation for Pydantic AI's models."""
