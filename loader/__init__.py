"""Strandline's loader: incremental append from databases and files into Iceberg tables.

The command line is the main interface. Programs that embed the loader may import

- :func:`loader.spec.spec.load_spec`, :class:`loader.sync.pipeline.Pipeline`,
  :func:`loader.sync.runner.run_tables` and :class:`loader.sync.run_context.Watch`: runs, and their
  events, which the logger ``loader`` also receives,
- :func:`loader.spark.profile.load_profile` and :func:`loader.spark.session.session`: the Spark
  that a run needs,
- :mod:`loader.sources.interface` (``Source``, ``Snapshot``): the interface of connectors,
- :mod:`loader.sync.ingest` and :mod:`loader.cli.ingest_command`: for commands that push batches
  into a lake,
- :mod:`loader.state` (``StateBackend``) and :mod:`loader.testing`: the interface of state backends,
  and the tests that they must pass,
- :mod:`loader.errors`: the errors that these modules raise.

Everything else may change without notice.
"""

from __future__ import annotations

import logging

__version__ = "0.1.0"

# As a library, log nothing by default; an embedding program adds a handler.
logging.getLogger(__name__).addHandler(logging.NullHandler())
