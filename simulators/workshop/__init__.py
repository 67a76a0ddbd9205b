"""Many workers in a simulated world: the real tasks, graphs, queue and worker, on a real SQL database in memory.

Only time, chance, the wire to the database, the transport, the model and the tools are simulated, all from a seed.
"""
