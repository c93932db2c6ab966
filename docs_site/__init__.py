"""The documentation site: `make docs` builds it from docs/, the README and the code."""
