"""`loader reconcile`, which finds and repairs changes that cursors miss."""
