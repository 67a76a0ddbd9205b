"""The one door to the network for tools: what may be reached (`guard.py`), and how it is asked (`client.py`).

Used by the backends, by the exchange of tokens, and by whatever else a tool connects to. Never trusts a name: it is
resolved once, every address is checked, and the connection goes to an address that was checked.
"""
