"""`loader reconcile`: compares contents to find changes that cursors miss, and repairs them."""
