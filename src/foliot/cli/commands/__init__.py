"""The verbs. Each module holds one (or a pair that belongs together) and is named in the table of `cli/main.py`."""
