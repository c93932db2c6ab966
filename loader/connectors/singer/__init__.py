"""The connector `singer`: any tap."""
