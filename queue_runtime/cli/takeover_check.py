"""The walk of `queue-runtime takeover check`: each step is tried, and shown when it cannot be passed."""

import anyio
import anyio.to_thread
import click
from msgspec import Struct
from msgspec.structs import replace

from queue_runtime import compose, takeover
from queue_runtime.canary import TEST_CLASS, Canary, run_here, send, stopped
from queue_runtime.cli.environment import EXIT_FAILED
from queue_runtime.cli.findings import show
from queue_runtime.cli.heard import Heard
from queue_runtime.cli.there import held_there
from queue_runtime.config import Config
from queue_runtime.findings import Finding, Level, fault, note, ok
from queue_runtime.handler_spec import ANY_CLASS
from queue_runtime.selftest import CANARY, run_selftest
from queue_runtime.store import Store
from queue_runtime.takeover import Activity, Phd, Waiting, Worker
from queue_runtime.takeover_plan import Step, commands_of
from queue_runtime.task import Sentinel

_BOTH_SIDES = (
    f"where CONDUIT_CLASSES or TASK_CLASSES are set, add {CANARY}, and likewise to queue-runtime.classes in Phorge's"
    " configuration where that is set"
)

_LEFT_OUT = ("nobody took", "ERR-WORKER-CLASS", Sentinel.YIELD)
"""Signs of a side that does not let the class through."""


class Wish(Struct, frozen=True):
    """What a canary is to be."""

    task_class: str | None
    """None: the usual one"""

    seconds: float


class Proof(Struct):
    """What the canaries have shown."""

    found: list[Finding]
    by_worker: bool = False
    """the worker that answers has run one"""

    by_phorge: bool = False
    """PHP has run one"""

    fork: bool = False
    """Phorge has a method of its own, and so the means to enqueue over HTTP"""

    @property
    def failed(self) -> bool:
        return any(one.level in {Level.WARNING, Level.FAULT} for one in self.found)


def show_step(found: list[Finding], step: Step, phorge: str, *, stop: bool) -> None:
    """Print what a step found; with `stop` it is the end, with the commands that belong to the step."""
    try:
        show(found)
    finally:
        if stop:
            click.echo(commands_of(step, phorge=phorge), nl=False)
    if stop:
        raise SystemExit(EXIT_FAILED)


def examine(config: Config) -> list[Finding]:
    """What is wrong with the store. Raises StoreUnavailable or StoreUnusable."""
    found = compose.examine(config, repair=False)
    trouble = [one for one in found if one.level in {Level.WARNING, Level.FAULT}]
    return trouble or [ok("store", f"{len(found)} things were looked at: queue-runtime doctor --store")]


async def selftest(store: Store) -> list[Finding]:
    """A selftest, and what it has to say beside."""
    report = await run_selftest(store)
    notes = [note("selftest", one) for one in report.notes]
    return [*notes, (ok if report.ok else fault)("selftest", report.sentence)]


async def prove(config: Config, store: Store, worker: Worker, wish: Wish, heard: Heard) -> Proof:
    """Ask Phorge, and have a task run: by the worker that answers where that can be, else here. Raises ConfigError."""
    # the usual canaries do nothing, so what narrows the classes of a worker does not hold for this command
    patterns = (*config.conduit_classes, CANARY, TEST_CLASS)
    trial = compose.trial(replace(config, conduit_classes=patterns) if wish.task_class is None else config)
    proof = Proof([])
    extension = False
    if trial.phorge is not None:
        await trial.phorge.look()
        terms = trial.phorge.terms
        if terms is None:
            proof.found.append(
                fault("conduit", f"Phorge at {config.conduit_url} cannot run tasks: {trial.phorge.trouble}")
            )
            return proof
        extension = terms.locks
        proof.fork = not extension
        method = "queue-runtime's extension" if extension else "a method of its own, as the fork has"
        proof.found.append(
            ok("conduit", f"Phorge at {config.conduit_url} runs tasks by {method}, version {terms.version}")
        )
    await _Walk(config, store, worker, trial, heard=heard, proof=proof).run(wish, extension=extension)
    return proof


class _Walk:
    """One try, by one or two canaries."""

    def __init__(
        self, config: Config, store: Store, worker: Worker, trial: compose.Trial, *, heard: Heard, proof: Proof
    ) -> None:
        self._config = config
        self._store = store
        self._worker = worker
        self._trial = trial
        self._heard = heard
        self._proof = proof

    async def run(self, wish: Wish, *, extension: bool) -> None:
        found, worker = self._proof.found, self._worker
        by_phorge = self._trial.phorge is not None
        usual = CANARY if extension else TEST_CLASS
        canary = self._canary(wish.task_class or usual, wish.seconds, by_phorge=by_phorge)
        if (paused := await stopped(self._store, canary, self._queue(canary))) is not None:
            found.append(paused)
            return
        through_it = self._would_take(canary) and not (by_phorge and canary.task_class in self._trial.registry.classes)
        if worker.trouble is None and through_it:
            await self._send(canary)
            return
        why = worker.trouble or self._why_not(canary)
        found.append(note("canary", f"{why}; this command runs the task itself"))
        await self._run_here(canary)
        plain = self._canary(TEST_CLASS, wish.seconds, by_phorge=False)
        if by_phorge and not self._proof.failed and worker.trouble is None and self._would_take(plain):
            await self._send(plain)

    def _canary(self, task_class: str, seconds: float, *, by_phorge: bool) -> Canary:
        queues, queue = self._config.queues, self._config.routes.queue_for(task_class)
        return Canary(task_class, seconds, by_phorge, None if queues is None or queue in queues else queues[0])

    def _queue(self, canary: Canary) -> str:
        return canary.queue or self._config.routes.queue_for(canary.task_class)

    def _would_take(self, canary: Canary) -> bool:
        return self._worker.takes(canary.task_class) and self._worker.takes_from(self._queue(canary))

    def _why_not(self, canary: Canary) -> str:
        address = self._worker.address
        if self._would_take(canary):
            return f"the worker at {address} has a handler of its own for {canary.task_class}"
        advice = f": {_BOTH_SIDES}" if canary.task_class == CANARY else ""
        return f"the worker at {address} does not lease {canary.task_class}{advice}"

    async def _send(self, canary: Canary) -> None:
        finding = await send(self._store, canary)
        self._take(canary, finding)
        self._proof.by_worker = finding.level is Level.OK
        if not self._proof.by_worker and canary.by_phorge:
            reason = await anyio.to_thread.run_sync(held_there, self._worker, canary.task_class)
            if reason is not None:
                self._proof.found.append(note("worker", f"{self._worker.address} says: {reason}"))

    async def _run_here(self, canary: Canary) -> None:
        registry = self._trial.registry
        handler = registry.fallback_spec if canary.by_phorge else registry.find(canary.task_class)
        if handler is None or not handler.accepts(canary.task_class):
            self._proof.found.append(
                fault("canary", f"nobody here may run {canary.task_class} (TASK_CLASSES, CONDUIT_CLASSES)")
            )
            return
        self._heard.lines()
        lease_seconds, patience = self._config.lease_seconds, self._config.patience
        self._take(
            canary,
            await run_here(
                self._store, canary, handler, lease_seconds=lease_seconds, patience=patience, heard=self._heard.lines
            ),
        )

    def _take(self, canary: Canary, finding: Finding) -> None:
        self._proof.found.append(finding)
        if finding.level is Level.OK:
            self._proof.by_phorge = self._proof.by_phorge or canary.by_phorge
        elif canary.task_class == CANARY and any(sign in finding.sentence for sign in _LEFT_OUT):
            self._proof.found.append(note("canary", _BOTH_SIDES))


class Seen(Struct, frozen=True):
    """Who works on the queue, as far as rows, Phorge and the process that answers say."""

    activity: Activity
    waiting: Waiting
    phd: Phd
    enqueued: int | None
    """requests to enqueue that came over HTTP; None: nobody can say"""


def say_the_rest(seen: Seen, worker: Worker, proof: Proof, phorge: str) -> None:
    """Who works on the queue, and the step that is next because of that. Ends with exit code 1 where it is step 2."""
    activity = seen.activity
    natives = bool(activity.native_hosts) or seen.phd.natives
    show(note("takeover", reason) for reason in (*takeover.acting(activity), *takeover.idle(seen.phd)))
    if activity.covered and not natives:
        show([ok("native taskmasters", f"none has acted in the last {activity.minutes} minutes")])
    reasons = list(takeover.reasons_to_wait(activity, seen.waiting, worker))
    if not proof.by_worker and worker.trouble is None:
        reasons.append(f"no canary was run by the worker at {worker.address}")
    if natives and not proof.by_phorge:
        reasons.append("no canary went through PHP (CONDUIT_URL), so nobody else would run Phorge's own classes")
    if reasons:
        stay = [fault("takeover", f"native taskmasters must stay on yet: {reason}") for reason in reasons]
        show_step(stay, Step.CONDUIT, phorge, stop=True)
    if ANY_CLASS not in (worker.supported or ()):
        leases = takeover.some(worker.supported or ())
        show([note("worker", f"{worker.address} leases {leases}: all other classes have native taskmasters alone")])
    steps = [Step.TASKMASTERS if natives else Step.CLOSED]
    if proof.fork and not seen.enqueued:  # nobody has seen that step 3 is done
        steps.insert(0, Step.ENQUEUE)
    click.echo(commands_of(*steps, phorge=phorge), nl=False)
