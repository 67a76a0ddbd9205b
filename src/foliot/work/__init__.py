"""Getting work done: tasks, graphs, workers, schedules, webhooks."""
