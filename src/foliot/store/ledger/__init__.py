"""Counters that processes share: budgets, limits on tools and models, calls in doubt, pushed results."""
