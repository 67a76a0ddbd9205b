"""How runs look: the live view on a terminal, plain lines, JSON lines, and the tree of a trace."""
