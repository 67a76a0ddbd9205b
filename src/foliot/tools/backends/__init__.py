"""What really does a call, one file per kind of tool. Reached through the pipeline only."""
