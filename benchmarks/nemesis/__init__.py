"""A nemesis for the loader: random schedules against real databases, with an invariant.

A seed determines a schedule: writers in interleaved transactions, database events such as a
restart, and the loader's own commands, some of which are killed or run during the events. At each
quiet point, the lake must equal the source. See ``benchmarks/README.md``, "A nemesis", and
``make nemesis``.
"""
