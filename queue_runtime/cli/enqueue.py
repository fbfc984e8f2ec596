"""`queue-runtime enqueue`: adds one task through the API of a running queue."""

import json
import sys

import click

from queue_runtime.cli.environment import fail, reading_or_exit
from queue_runtime.cli.http import ask


@click.command()
@click.argument("task_class")
@click.argument("data", default="")
@click.option("--priority", type=click.IntRange(0), help="A smaller number runs earlier. Default: 2000.")
@click.option("--queue", help="Queue of the task. Default: by QUEUE_RUNTIME_ROUTES of the server.")
@click.option("--delay-until", type=click.IntRange(1), help="Not before this Unix second.")
@click.option("--key", help="Idempotency key: a second task of this key is not created.")
@click.option("--max-attempts", type=click.IntRange(1), help="Runs that may end in failure.")
@click.option("--url", help="Base URL of the queue. Default: the first address of QUEUE_RUNTIME_LISTEN.")
def enqueue(  # noqa: PLR0917 - click passes each option by its name
    task_class: str,
    data: str,
    priority: int | None,
    queue: str | None,
    delay_until: int | None,
    key: str | None,
    max_attempts: int | None,
    url: str | None,
) -> None:
    """Enqueue one task of TASK_CLASS with DATA (text as it is, `-` reads stdin) and print its id."""
    _, config = reading_or_exit()
    address = url or config.listen[0]
    body = {
        "taskClass": task_class,
        "data": sys.stdin.read() if data == "-" else data,
        "priority": priority,
        "queue": queue,
        "delayUntil": delay_until,
        "idempotencyKey": key,
        "maxAttempts": max_attempts,
    }
    sent = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
    try:
        status, text = ask(address, "POST", "/api/queue/enqueue", body=sent, token=config.token, seconds=30)
        answer = json.loads(text)
    except ConnectionRefusedError as error:
        fail(f"{address} does not answer: {error}. Nothing was accepted")
    except OSError as error:
        fail(f"{address} does not answer: {error}. Nobody knows whether the task was accepted")
    except ValueError:
        fail(f"{address} is not a queue: it answers {status} and no JSON")
    if status != 200:
        fail(f"refused with {status}: {answer.get('error', {}).get('message', '')}")
    click.echo(answer["data"]["id"])
