"""The bridge: a separate program between CloudQuery and the loader.

It uses the protocol of CloudQuery (gRPC, Arrow) on one side, and Airbyte's messages on the other. A
plugin stores a state before the records that it covers are safe, so the bridge holds the state back
until the sync has ended.

The bridge runs in an environment with `cloudquery-plugin-pb`, which may lack the loader. So it
imports only the supervisor of child processes from the loader.
"""
