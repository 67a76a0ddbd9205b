"""The files of runs: a folder for each, snapshots of it in the journal, and the way back from there.

Called by tools through `foliot.tools.workspaces`, and by the verbs that show and restore files. It never starts a
program, and never reads or writes outside of the folders of runs.
"""
