"""Reports runs to other programs: metrics for Prometheus and OpenTelemetry, and messages."""
