"""The kinds, one file each: fields, defaults, and the rules that hold between fields.

Reached through `foliot.resources.kinds`; nothing here knows of files, stores or other resources.
"""
