"""The command ``loader``, and ``python -m loader``."""

import signal


def start() -> None:
    """Runs the command line.

    Until it can answer a Ctrl-C itself, one ends the process at once: while its modules are
    imported, Python would print a stack trace of them.
    """
    answered = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if answered:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from loader.cli import main

    if answered:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main(prog_name="loader")


if __name__ == "__main__":
    start()
