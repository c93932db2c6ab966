"""A program of its own, between a CloudQuery source plugin and the loader.

It speaks the plugin's protocol (gRPC, Arrow) to one side and Airbyte's messages to the other. A
plugin makes a state durable before the records that it covers, so the bridge keeps the state until
the sync has ended. It runs in an environment that has `cloudquery-plugin-pb`, which the loader's
need not have, and imports nothing of the loader but the supervisor of child processes.
"""
