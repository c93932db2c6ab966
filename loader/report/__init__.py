"""``loader report``: a page that shows whether tables, proofs and comparisons are in order."""
