"""What only we know of the API, for its description: what each operation answers, how it fails, and in which shapes.

Called by server/description.py and by nobody else; nothing here is looked at while a request is served.
"""
