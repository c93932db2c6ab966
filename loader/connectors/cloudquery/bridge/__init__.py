"""The bridge: a separate program between CloudQuery and the loader.

The bridge talks to plugins in CloudQuery's protocol (gRPC, Arrow), and to the loader in Airbyte
messages. A plugin stores its state before the lake contains the records that the state covers, so
the bridge delays the state until the sync has finished.

The bridge runs in a Python environment that has `cloudquery-plugin-pb` but may not have the loader.
It may import only one of the loader's modules, the supervisor of child processes.
"""
