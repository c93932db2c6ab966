"""Only `make test-matrix` has two lines of Spark."""

import os

collect_ignore = [] if os.environ.get("OTHER_PYTHON") else ["test_in_turn.py"]
