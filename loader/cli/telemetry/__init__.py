"""Reports runs to other programs: metrics, traces, lineage events and webhook messages."""
