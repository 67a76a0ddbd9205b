"""What is shown of a task: its document, its story, why it is where it is."""
