"""The `cloudquery` connector, which runs source plugins, and `loader serve`, a destination.

CloudQuery's plugins list the resources of cloud accounts.
"""
