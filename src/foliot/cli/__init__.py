"""The command line: one file per verb in `commands/`, and what they share beside it.

Called by people and their scripts. Stands on the verbs of `runtime/groups/`; nothing imports it. Every module here is
loaded only when its verb is typed, because a command line that hesitates is not used.
"""
