"""The connector `cloudquery`: any source plugin of CloudQuery's protocol, version 3."""

from loader.sources.cloudquery.source import CloudQuerySource

__all__ = ["CloudQuerySource"]
