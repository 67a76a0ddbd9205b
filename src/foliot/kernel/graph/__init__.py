"""The graph of a task: its facts, the state they fold to, and what follows from each."""
