"""Entry point of the console script and of `python -m queue_runtime`."""

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["serve"]:
        _serve()
    else:
        _run_command()


def _serve() -> None:
    """Run the queue, and leave by its exit code whatever still runs: a stuck thread would hold up every other way."""
    # the handlers before the other imports: starting takes a moment
    from queue_runtime.signals import end_process, leave_when_told  # noqa: PLC0415

    code: object = 0
    leave_when_told()
    try:
        _run_command()
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:  # noqa: BLE001  told as Python would tell it, and then the same way out
        sys.excepthook(*sys.exc_info())
        code = 1
    end_process(code if isinstance(code, int) else 1)


def _run_command() -> None:
    from queue_runtime.cli.app import cli  # noqa: PLC0415  `_serve` has something to do before

    cli(prog_name="queue-runtime")


if __name__ == "__main__":
    main()
