"""A load of tasks with faults in it, what came of them, and whether that is good enough."""
