"""The bridge: a separate program between CloudQuery and the loader.

It uses CloudQuery's protocol (gRPC, Arrow) to communicate with plugins, and Airbyte's messages to
communicate with the loader. A plugin stores its state before the lake contains the records that the
state covers. So the bridge delays the state until the sync has ended.

The bridge runs in an environment with `cloudquery-plugin-pb`, in which the loader may not be
installed. So from the loader it imports only the supervisor of child processes.
"""
