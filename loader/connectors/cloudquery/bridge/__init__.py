"""The bridge: a separate program between CloudQuery and the loader.

The bridge communicates with plugins through CloudQuery's protocol (gRPC, Arrow), and with the
loader through Airbyte messages. A plugin stores its state before the lake contains the records that
the state covers. So the bridge delays the state until the sync has finished.

The bridge runs in a Python environment that has `cloudquery-plugin-pb` but may not have the loader.
So the only module of the loader that it imports is the supervisor of child processes.
"""
