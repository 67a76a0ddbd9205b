"""Authentication and authorization: tokens, accounts, sessions, identity providers."""
