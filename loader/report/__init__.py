"""``loader report``: one page that shows whether all tables, proofs and comparisons are right."""
