"""The plans of a run, the sync protocol, and recovery after a crash."""
