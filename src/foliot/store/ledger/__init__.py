"""What processes share and count: budgets, limits on tools and models, calls in doubt, pushed results."""
