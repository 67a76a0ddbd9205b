"""The pure heart: plain functions over plain data. No clock, no chance, no network, no database, no `await`.

Imports nothing else of foliot. Driven by the engine, by replay, by property tests and by the simulator.
"""
