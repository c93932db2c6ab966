"""The bridge: a separate program between CloudQuery and the loader.

The bridge uses CloudQuery's protocol (gRPC, Arrow) with plugins, and Airbyte messages with the
loader. A plugin stores its state before the lake contains the records that the state covers, so the
bridge delays the state until the sync has finished.

The bridge runs in a Python environment that has `cloudquery-plugin-pb` but may not have the loader.
It may import only one module of the loader, the supervisor of child processes.
"""
