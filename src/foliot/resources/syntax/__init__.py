"""From bytes to plain values with positions: text decoding, YAML scalars, JSON, and errors in human words.

Called by yaml.py and reader.py. Knows nothing of kinds; never touches a file.
"""
