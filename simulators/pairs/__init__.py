"""Pairs of transactions, interleaved statement by statement on two real connections of PostgreSQL.

`python -m simulators.pairs` plays them and prints a table. Here is only the name of the room.
"""
