"""Simulated worlds for Foliot's own tests; not part of the package that is installed.

engine/     one run of the real engine at a time: virtual time, seeded chance, processes that die at the worst moments
workshop/   many workers: the real tasks, queue and worker on real SQL, with the visibility of READ COMMITTED
pairs/      every pair of transactions that meet in a table, interleaved on two connections of a real PostgreSQL
provider.py a provider of models that speaks every wire format and fails on request; provider_formats.py has the formats
proxy.py    a network that resets, delays and swallows, in front of a real server

Imported by `tests/` and `benchmarks/`, which run from the root of the repository. `foliot` never imports it.
"""
