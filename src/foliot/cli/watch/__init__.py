"""Watching a run or a task from the command line until it ends or waits."""
