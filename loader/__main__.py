"""The ``loader`` command, and ``python -m loader``."""

import signal


def start() -> None:
    """Runs the command line. Ctrl-C during the imports ends the process without a stack trace."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from loader.cli import main

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main(prog_name="loader")


if __name__ == "__main__":
    start()
