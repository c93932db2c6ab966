"""One run: spec and source brought together, the protocol, its recovery."""
