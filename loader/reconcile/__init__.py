"""`loader reconcile`: what cursors cannot see, found by comparing contents, and mended."""
