"""The command line: one file per verb in `commands/`, and what they share beside it.

Called by people and their scripts. Stands on the verbs of `runtime/groups/`; nothing imports it. Every module here is
loaded only when its verb is typed, because a command line that hesitates is not used.

A command has one code path, whether the verbs act on a runtime of this process or on a server: `reach.connected` opens
those that need only the store, `runtimes.reached` all of them. The few places that ask which it is are listed, with
their reasons, in tests/cli/test_one_way.py.
"""
