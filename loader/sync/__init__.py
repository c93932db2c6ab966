"""One run: its plans, the sync protocol, and recovery after a crash."""
