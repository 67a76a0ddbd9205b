"""The hands of the kernel: acts, records, resumes, replays and forks.

Called by the runtime. Never decides what a run should do next (the kernel does) and never prints.
"""
