"""A program of its own, between a CloudQuery source plugin and the loader.

It speaks the plugin's protocol (gRPC, Arrow) to one side and Airbyte's messages to the other, and
keeps the plugin's state until its sync has ended: the plugin's own order, which makes a state
durable before the records that it covers, is mended there. It runs in an environment that has
`cloudquery-plugin-pb`, which the loader's need not have, and imports nothing of the loader.
"""
