"""Selects the environment variables of child processes, which must not inherit all secrets."""

from __future__ import annotations

import os

PASSED_ON = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "JAVA_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "DOCKER_HOST",
    "DOCKER_CONFIG",
)


def child_environment(*more: str) -> dict[str, str]:
    """Returns the variables that :data:`PASSED_ON` and `more` name, if they are set."""
    return {name: os.environ[name] for name in (*PASSED_ON, *more) if name in os.environ}
