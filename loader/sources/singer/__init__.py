"""The connector `singer`: any tap."""

from loader.sources.singer.source import SingerSource

__all__ = ["SingerSource"]
