"""The way out of a fence: a broker outside that decides, a forwarder inside that only carries bytes."""
