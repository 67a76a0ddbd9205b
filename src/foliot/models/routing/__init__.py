"""Between the name of an endpoint and a gateway: the chain, limits, prices, tokens."""
