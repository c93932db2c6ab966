"""Strandline's loader: incremental append from databases and files into Iceberg tables.

The command line is the interface. Programs that embed the loader may import

- :func:`loader.spec.spec.load_spec`, :class:`loader.sync.pipeline.Pipeline`,
  :func:`loader.sync.runner.run_tables` and :class:`loader.sync.run_context.Watch`: a run, and its
  events; the logger ``loader`` reports the same,
- :func:`loader.spark.profile.load_profile` and :func:`loader.spark.session.session`: the Spark
  that a run needs,
- :mod:`loader.sources.interface` (``Source``, ``Snapshot``): a connector of your own,
- :mod:`loader.sync.ingest` and :mod:`loader.cli.ingest_command`: batches that a command of your own
  pushes into a lake,
- :mod:`loader.state` (``StateBackend``) and :mod:`loader.testing`: a state backend of your own, and
  the tests that it must pass,
- :mod:`loader.errors`: the errors that all of them raise.

Everything else may change without notice.
"""

from __future__ import annotations

import logging

__version__ = "0.1.0"

# A library logs nothing by default; the program that embeds it adds a handler.
logging.getLogger(__name__).addHandler(logging.NullHandler())
