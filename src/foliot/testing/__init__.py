"""Testing aids that ship to users: real services on private ports, suites that hold for every backend, fakes.

Used by tests and by `foliot dev`. Nothing that runs in production imports it.
"""
