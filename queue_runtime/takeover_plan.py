"""The steps of taking over from Phorge's taskmasters, with the commands of each, and the way back."""

from collections.abc import Sequence
from enum import IntEnum
from shlex import quote

from msgspec import Struct


class Step(IntEnum):
    """The order of taking over. Each is there because the ones after it need it."""

    SHADOW = 0
    STORE = 1
    CONDUIT = 2
    ENQUEUE = 3
    TASKMASTERS = 4
    CLOSED = 5


class Stage(Struct, frozen=True):
    """A step as the plan has it. `{phorge}` stands for Phorge's folder."""

    step: Step
    title: str
    commands: str


STAGES: Sequence[Stage] = (
    Stage(
        Step.SHADOW,
        "Look on, as long as you like. Nothing is written, and nothing is taken from anybody.",
        """\
QUEUE_RUNTIME_SHADOW=1 queue-runtime serve     (its log says what it would take, and who works now)
""",
    ),
    Stage(
        Step.STORE,
        "The store is in order. Nothing changes yet.",
        """\
queue-runtime init
queue-runtime doctor --store
queue-runtime selftest                         (three tasks that nobody else takes; they end in the archive)
""",
    ),
    Stage(
        Step.CONDUIT,
        "Phorge runs its classes for this runtime. Native taskmasters go on meanwhile.",
        """\
queue-runtime phorge install {phorge}          (not for the fork, which has the method)
printf %s TOKEN | {phorge}/bin/config set --stdin queue-runtime.token
systemctl reload 'php*-fpm'
queue-runtime doctor --conduit                 (on Phorge's own machine with --phorge {phorge} too)
queue-runtime serve                            (without SHADOW; with CONDUIT_URL, CONDUIT_TOKEN, and CONDUIT_HOST)
queue-runtime takeover check                   (a canary task goes the whole way, through PHP to the archive)
""",
    ),
    Stage(
        Step.ENQUEUE,
        "The fork only: new tasks come over HTTP.",
        """\
{phorge}/bin/config set gorge.taskqueue.uri http://THIS-HOST:8090
""",
    ),
    Stage(
        Step.TASKMASTERS,
        "Native taskmasters off, on every host that runs phd. The other daemons go on: the trigger daemon is not"
        " replaced.",
        """\
{phorge}/bin/config get phd.taskmasters        (write the number down)
{phorge}/bin/config set phd.taskmasters 0
{phorge}/bin/phd stop
{phorge}/bin/phd start --keep-leases           (without it all leases, delays and waits of the queue end at once)
""",
    ),
    Stage(
        Step.CLOSED,
        "The loop is closed: a quarter of an hour later nobody else has acted, and no task waits for nobody.",
        """\
queue-runtime takeover status
""",
    ),
)

BACK = """\
{phorge}/bin/config delete gorge.taskqueue.uri (the fork only)
{phorge}/bin/config set phd.taskmasters NUMBER
wait two minutes: from then on a run in PHP keeps its row for as long as it may take, also when its caller is gone
stop `queue-runtime serve` by SIGTERM: it gives back what it holds
{phorge}/bin/phd stop
{phorge}/bin/phd start --keep-leases
queue-runtime phorge remove {phorge}           (last: what Phorge still runs for it ends first)
"""


def plan(phorge: str) -> str:
    """All steps with their commands, and the way back."""
    parts = ["The store stays where it is, Phorge's own tables, so each step can be taken back.\n"]
    parts += [f"{stage.step}. {stage.title}\n{_indented(stage.commands, phorge)}" for stage in STAGES]
    parts.append(f"The way back, from any step:\n{_indented(BACK, phorge)}")
    return "\n".join(parts)


def commands_of(*steps: Step, phorge: str) -> str:
    """The commands of the next steps, and those that take them back."""
    parts = [
        f"{word} step {step}: {STAGES[step].title}\n{_indented(STAGES[step].commands, phorge)}"
        for word, step in zip(["next is", *["after it"] * len(steps)], steps, strict=False)
    ]
    return "".join(parts) + f"the way back:\n{_indented(BACK, phorge)}"


def _indented(commands: str, phorge: str) -> str:
    return "".join(f"     {line}\n" for line in commands.format(phorge=quote(phorge)).splitlines())
