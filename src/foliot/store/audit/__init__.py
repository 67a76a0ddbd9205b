"""The audit log: chained, verified, pruned."""
