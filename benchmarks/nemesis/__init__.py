"""A nemesis for the loader: random schedules against real databases, with an invariant.

A seed draws a schedule: writers in interleaved transactions, events that befall a database, and
our own commands, some killed, some with all of that happening in their midst. Whatever the
schedule, at each quiet point what the lake says must be what the source says. See
``docs/architecture.md``, "The nemesis", and ``make nemesis``.
"""
