"""`loader reconcile`: finds and repairs changes that cursors miss."""
