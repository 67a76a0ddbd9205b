"""How the command line and other programs reach a Foliot: the same verbs on the embedded store and on a server."""
