"""The verbs on a store in this process."""
