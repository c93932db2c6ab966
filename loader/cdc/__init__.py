"""Change data capture: reads a table's changes from the database's log (`sync_mode: cdc`).

A plug-in of the connector `jdbc`, found by the entry-point group `strandline.capture`. It brings
deletes, and all versions between two runs, without a query of the table, where reading by a cursor
sees the newest version of each row.

Debezium's embedded engine decodes the log in a process of its own (`debezium/`) and spools the
changes to files, which Spark turns into rows (`changes.py`, `values.py`).
"""
