"""The connector `cloudquery` for source plugins, and the command `loader serve` for the CLI.

CloudQuery's plugins list the resources of cloud accounts.
"""
