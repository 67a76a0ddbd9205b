"""One conversation, many processes that speak to it and answer it, and everything that may befall them."""
