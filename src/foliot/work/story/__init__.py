"""What is shown of a task: its story from its events and runs, its document, why it is where it is, its graph."""
