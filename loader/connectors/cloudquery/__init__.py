"""CloudQuery: the connector `cloudquery` for its source plugins, and `loader serve` for its CLI."""
