"""Where connections come in: bounds, rates, origins, logs, and the server process."""
