"""Small parts that every room may use. They know nothing of Foliot's rooms."""
