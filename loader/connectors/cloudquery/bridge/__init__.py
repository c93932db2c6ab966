"""The bridge: a separate program between CloudQuery and the loader.

It uses CloudQuery's protocol (gRPC, Arrow) to communicate with plugins, and Airbyte's messages to
communicate with the loader. A plugin stores a state before the lake contains the records that the
state covers. So the bridge holds the state back until the sync has ended.

The bridge runs in an environment with `cloudquery-plugin-pb`, which may lack the loader. So it
imports only the supervisor of child processes from the loader.
"""
