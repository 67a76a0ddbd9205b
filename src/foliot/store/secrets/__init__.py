"""Secret values and the keys that seal them."""
