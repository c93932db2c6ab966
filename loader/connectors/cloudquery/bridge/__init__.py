"""The bridge: a separate program between CloudQuery and the loader.

The bridge communicates with plugins by CloudQuery's protocol (gRPC, Arrow) and with the loader by
Airbyte messages. A plugin stores its state before the lake contains the records that the state
covers. So the bridge delays the state until the sync has finished.

The bridge runs in an environment with `cloudquery-plugin-pb`, in which the loader may not be
installed. So the bridge imports only the supervisor of child processes from the loader.
"""
