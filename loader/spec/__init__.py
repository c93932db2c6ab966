"""The spec: the document as it is written, its variables expanded, its options validated."""
