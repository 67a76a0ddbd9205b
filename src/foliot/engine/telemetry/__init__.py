"""Telemetry for operators: counts and states for Prometheus, and traces for OpenTelemetry.

Both are folds over what is recorded anyway. Nothing here is loaded, and nothing is counted, until somebody asks.
"""
