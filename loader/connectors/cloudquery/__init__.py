"""The connector `cloudquery` for source plugins, and the command `loader serve` for the CLI.

It is worth having for inventories of cloud resources, and for users who keep CloudQuery's CLI.
"""
