"""What is kept of those who may call."""
