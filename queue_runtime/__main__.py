"""Entry point of the console script and of `python -m queue_runtime`."""

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["serve"]:
        from queue_runtime.signals import leave_when_told  # noqa: PLC0415  `health` need not pay for it

        leave_when_told()
    from queue_runtime.cli.app import cli  # noqa: PLC0415  after the handlers above: starting takes a moment

    cli(prog_name="queue-runtime")


if __name__ == "__main__":
    main()
