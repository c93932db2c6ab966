"""The `cloudquery` connector for source plugins, and `loader serve`, a CloudQuery destination.

CloudQuery's source plugins list the resources of cloud accounts.
"""
