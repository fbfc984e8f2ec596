"""`queue-runtime selftest`: a task of its own goes through the real store, and is taken away again."""

from typing import TYPE_CHECKING

import click

from queue_runtime.cli.environment import EXIT_FAILED, fail, quiet_logs, reading_or_exit, refuse_in_shadow

if TYPE_CHECKING:
    from queue_runtime.selftest import Report


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def selftest(as_json: bool) -> None:
    """Enqueue, read, lease, renew, settle and cancel three tasks that nobody else takes, and check every answer.

    It may be run at any time beside a working queue. What stays: three ids are used up, and the three ended tasks are
    in the archive until their retention is over. Exit code 0: all as it should be. 1: not so, and the step is named.
    """
    from queue_runtime import compose
    from queue_runtime.cli.stopping import run_until_told
    from queue_runtime.current import Current
    from queue_runtime.errors import ConfigError, StoreUnavailable, StoreUnusable
    from queue_runtime.selftest import run_selftest

    _, config = reading_or_exit()
    refuse_in_shadow(config, "the selftest writes to the store")
    quiet_logs(config)

    async def run() -> "Report":
        async with compose.opening(Current(config)) as store:
            return await run_selftest(store)

    try:
        compose.check_extras(config)
        report = run_until_told(run)
    except ConfigError as error:
        fail("; ".join(error.problems))
    except (StoreUnavailable, StoreUnusable) as error:
        fail(f"the store cannot be used: {error}")
    click.echo(_json(report) if as_json else _lines(report), nl=not as_json)
    if not report.ok:
        raise SystemExit(EXIT_FAILED)


def _lines(report: "Report") -> str:
    lines = [f"ok       {one.name}: {one.milliseconds:.1f} ms" for one in report.steps]
    lines += [f"note     selftest: {one}" for one in report.notes]
    if report.ok:
        lines.append(f"ok       selftest: passed; what stays is tasks {_ids(report)} in the archive")
    else:
        lines.append(f"fault    selftest: {report.sentence}")
    return "\n".join(lines)


def _ids(report: "Report") -> str:
    return ", ".join(map(str, report.task_ids))


def _json(report: "Report") -> str:
    import orjson

    facts = {
        "ok": report.ok,
        "steps": [{"name": one.name, "milliseconds": round(one.milliseconds, 3)} for one in report.steps],
        "failed": report.failed,
        "trouble": report.trouble,
        "advice": report.advice,
        "notes": report.notes,
        "taskIDs": report.task_ids,
    }
    return orjson.dumps(facts, option=orjson.OPT_APPEND_NEWLINE).decode()
