"""CloudQuery: the connector `cloudquery` for its source plugins, and `loader serve` for its CLI.

Worth having for inventories of clouds and infrastructure, and for those who keep CloudQuery's CLI.
"""
