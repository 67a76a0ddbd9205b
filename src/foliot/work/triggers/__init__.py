"""What makes tasks without somebody asking: the clock, and signed calls."""
