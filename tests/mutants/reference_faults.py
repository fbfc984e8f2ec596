"""Faults in the reference store, one for each rule that somebody could get wrong."""

from tests.mutants.mutant import Mutant


def reference(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    """A fault in the reference store."""
    return Mutant(name, "reference", "tests/reference_store.py", ((old, new),), caught_by)


def values(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    """A fault in the shared values, seen through the reference store."""
    return Mutant(name, "reference", "queue_runtime/task.py", ((old, new),), caught_by)


REFERENCE_FAULTS: tuple[Mutant, ...] = (
    # ---- fences
    reference(
        "a receipt is alive in the second of its expiry",
        "lease.expires > now)",
        "lease.expires >= now)",
        "fences",
    ),
    reference(
        "a receipt's expiry is not compared", "if lease.expires is not None and not (", "if False and not (", "fences"
    ),
    reference("the fence forgets the owner", "row.lease_owner != lease.owner or ", "", "fences"),
    reference(
        "a worker's fence dies with its lease",
        "        return row\n\n    def _replay",
        "        return row if (row.lease_expires or 0) > now else None\n\n    def _replay",
        "fences",
    ),
    reference("a sentinel fences", "is_sentinel(lease.owner) or lease.owner in PARKED_OWNERS", "False", "fences"),
    reference(
        "giving back keeps the owner",
        "self._put(row, lease_owner=owner, lease_expires=expires, date_modified=now)",
        "self._put(row, lease_owner=owner and row.lease_owner, lease_expires=expires, date_modified=now)",
        "fences",
        "giving_back",
    ),
    reference(
        "a receipt is granted twice",
        "while is_receipt(owner) and expires in self.tables.spent[task_id]:",
        "while False:",
        "fences",
    ),
    reference("a task brought back forgets its receipts", "self._spend_receipt(archived)", "pass", "fences"),
    reference(
        "another task's receipts lengthen a lease",
        "expires in self.tables.spent[task_id]:",
        "any(expires in spent for spent in self.tables.spent.values()):",
        "fences",
    ),
    reference(
        "a long receipt that was given back lengthens every later lease",
        "expires in self.tables.spent[task_id]:",
        "expires <= max(self.tables.spent[task_id], default=0):",
        "fences",
    ),
    reference(
        "a renewal frees the expiry that was",
        "self._spend_receipt(row)\n                row = ",
        "row = ",
        "fences",
    ),
    reference(
        "a renewal grants a spent expiry",
        "lease_expires=self._expiry(row.id, lease.owner, now + seconds)",
        "lease_expires=now + seconds",
        "fences",
    ),
    reference("renew shortens", "is not None and (row.lease_expires or 0) < now + seconds:", "is not None:", "renew"),
    reference(
        "a renewal is answered for the wrong lease",
        "        return renewed\n",
        "        return sorted(renewed, key=lambda row: 0 if row is None else row.id)\n",
        "renew",
    ),
    # ---- settle rounds
    reference(
        "LOST aborts the round",
        "return [self._settle(settlement, now) for settlement in settlements]",
        "replies: list[Settled] = []\n"
        "        for one in settlements:\n"
        "            lost = bool(replies) and replies[-1].verdict is Verdict.LOST\n"
        "            replies.append(replies[-1] if lost else self._settle(one, now))\n"
        "        return replies",
        "settle_rounds",
    ),
    reference(
        "the round is applied backwards",
        "return [self._settle(settlement, now) for settlement in settlements]",
        "return [self._settle(settlement, now) for settlement in reversed(settlements)][::-1]",
        "settle_rounds",
    ),
    reference(
        "a cancelled task is replayed",
        "archived.result != wanted",
        "archived.result not in (wanted, 2)",
        "replays",
    ),
    reference("a replay forgets the result", "archived.result != wanted", "wanted is None", "replays"),
    reference("a replay forgets the owner", "archived.lease_owner != lease.owner", "False", "replays"),
    reference(
        "a replay forgets the expiry",
        "(lease.expires is not None and archived.lease_expires != lease.expires)",
        "False",
        "replays",
    ),
    reference(
        "a last retry is replayed",
        "Fail: Result.FAILURE}",
        "Fail: Result.FAILURE, Retry: Result.FAILURE}",
        "max_attempts",
    ),
    reference(
        "nothing is ever replayed",
        "return Settled(Verdict.REPLAYED, archived)",
        "return Settled(Verdict.LOST)",
        "settle_rounds",
    ),
    reference("follow-ups are lost", "for followup in followups:", "for followup in ():", "followups"),
    reference(
        "follow-ups get the default priority",
        "self._insert(followup, row.priority)",
        "self._insert(followup, DEFAULT_PRIORITY)",
        "followups",
    ),
    Mutant(
        "a bad outcome is found when half of the round is written",
        "reference",
        "tests/reference_store.py",
        (
            ("        for settlement in settlements:\n            check_outcome(settlement.outcome)\n", ""),
            (
                "        lease = settlement.lease\n        row = self",
                "        check_outcome(settlement.outcome)\n        lease = settlement.lease\n        row = self",
            ),
        ),
        ("followups", "bounds"),
    ),
    # ---- giving back, attempts, losses
    reference("the floor of a yield is missing", "max(wait, YIELD_FLOOR)", "wait", "giving_back"),
    reference(
        "a release counts as a failure",
        "self._give_back(row, None, None, now)\n        return Settled",
        "self._give_back(replace(row, failure_count=row.failure_count + 1), None, None, now)\n        return Settled",
        "giving_back",
    ),
    reference(
        "a permanent failure raises the count",
        "            case Fail(failure):\n",
        "            case Fail(failure):\n                row = replace(row, failure_count=row.failure_count + 1)\n",
        "giving_back",
    ),
    reference("a retry leaves no failure time", "replace(row, failure_time=now)", "row", "giving_back"),
    reference(
        "one attempt too many", "row.failure_count + 1 >= maximum", "row.failure_count >= maximum", "max_attempts"
    ),
    reference(
        "the policy of the class wins over the row",
        "maximum = row.max_attempts if row.max_attempts is not None else class_maximum",
        "maximum = class_maximum if class_maximum is not None else row.max_attempts",
        "max_attempts",
    ),
    reference("a loss is not counted", "if is_worker(row.lease_owner):", "if False:", "losses"),
    reference(
        "any stale lease is a loss",
        "if is_worker(row.lease_owner):",
        "if row.lease_owner is not None and not is_sentinel(row.lease_owner):",
        "losses",
    ),
    reference(
        "a loss is a failure too",
        "lost_count=row.lost_count + 1)",
        "lost_count=row.lost_count + 1, failure_count=row.failure_count + 1)",
        "losses",
    ),
    reference("an outcome does not clear the losses", "row = replace(row, lost_count=0)", "pass", "losses"),
    reference(
        "one loss too many",
        "row.lost_count + 1 >= self._options.max_lost",
        "row.lost_count >= self._options.max_lost",
        "losses",
    ),
    # ---- lease order and times
    reference("priority is ignored", "return row.priority, row.id", "return 0, row.id", "lease_order"),
    reference("ties go to the newest", "return row.priority, row.id", "return row.priority, -row.id", "lease_order"),
    reference("due work goes by its time", "sorted(due[:WINDOW], key=_by_priority)", "due[:WINDOW]", "lease_order"),
    reference("due first is ignored", "if due_first:", "if False:", "lease_order"),
    reference(
        "a due row counts as fresh",
        "fresh = [row for row in rows if row.lease_owner is None and row.lease_expires is None]",
        "fresh = [row for row in rows if row.lease_owner is None and (row.lease_expires or 0) <= now]",
        "lease_order",
    ),
    reference("the bound of bytes is missing", "if taken and size > MAX_LEASE_BYTES:", "if False:", "lease_order"),
    reference("the limit is not lowered", "limit = min(limit, MAX_LEASE_LIMIT)", "pass", "lease_order"),
    reference(
        "the patience is ignored",
        "row.lease_expires, self._options.patience)\n        return due is",
        "row.lease_expires, 0)\n        return due is",
        "due_times",
    ),
    values(
        "a delay is due a second late", "if owner is None or owner == Sentinel.DELAY:", "if owner is None:", "due_times"
    ),
    values(
        "a lease is over in its last second",
        "return expires + 1 + (patience",
        "return expires + (patience",
        "due_times",
    ),
    values(
        "parked rows are leased",
        "    if owner in PARKED_OWNERS:\n        return None\n    if owner is None or",
        "    if owner is None or",
        "parked",
    ),
    # ---- filters and pauses
    reference("the ids in without are ignored", "and row.id not in without", "", "lease_filters"),
    reference("left out classes are leased", "and row.task_class not in without_classes", "", "lease_filters"),
    reference("an empty filter matches all", "(classes is None or row", "(not classes or row", "lease_filters"),
    reference(
        "a pause does not reach due work",
        "and not self._is_paused(row)",
        "and (row.lease_expires is not None or not self._is_paused(row))",
        "pause",
    ),
    reference("a pause of a queue is ignored", ", Pause(PauseKind.QUEUE, row.queue))", ")", "pause"),
    reference("resume lifts everything", "self.tables.pauses.discard(pause)", "self.tables.pauses.clear()", "pause"),
    # ---- enqueue
    reference(
        "an idempotency key answers the row of today",
        "return self.tables.keys[new.idempotency_key]",
        "known = self.tables.keys[new.idempotency_key]\n            return self.tables.active.get(known.id, known)",
        "idempotency",
    ),
    reference("a key is never forgotten", "self.tables.keys.pop(row.idempotency_key, None)", "pass", "idempotency"),
    reference("another task under a known event is taken for the same", "if known != digest:", "if False:", "events"),
    reference("a task is routed although it names its queue", "if new.queue is None else new.queue", "", "enqueue"),
    reference(
        "payloads are stripped",
        "self.tables.data[row.id] = new.data",
        "self.tables.data[row.id] = new.data.strip()",
        "payloads",
    ),
    reference(
        "ids of expired tasks are given again",
        "self.tables.last_id += 1",
        "self.tables.last_id = max([0, *self.tables.active, *self.tables.archived]) + 1",
        "retention",
    ),
    # ---- operators and the sweep
    reference("a yield that has failed is awakened", "and row.failure_count == 0 and", "and", "operators"),
    reference(
        "awaken does not date back",
        "self._put(row, lease_expires=moment)",
        "self._put(row, lease_expires=self._now())",
        "operators",
    ),
    reference(
        "free leaves sentinels",
        "if row.lease_owner is not None]\n",
        "if row.lease_owner is not None and not is_sentinel(row.lease_owner)]\n",
        "operators",
    ),
    reference("delay takes held rows", "if row.lease_owner in (None, Sentinel.DELAY)]", "]", "operators"),
    reference(
        "retry keeps the owner",
        "lease_expires=0,\n",
        "lease_expires=0, lease_owner=archived.lease_owner,\n",
        "retry",
    ),
    reference(
        "retry repeats successes unasked", "(archived.result == Result.SUCCESS and not repeat)", "False", "retry"
    ),
    reference(
        "retention counts from the enqueue",
        "if row.archived_epoch <= horizon]",
        "if row.date_created <= horizon]",
        "retention",
    ),
    reference("the sweep has no limit", "for row in over[:limit]:", "for row in over:", "retention"),
    # ---- reading
    reference("a page repeats its first row", "_by_priority(row) > after)", "_by_priority(row) >= after)", "lists"),
    reference(
        "waiting rows count as leased",
        "frozenset({Sentinel.RETRY, Sentinel.DELAY, Sentinel.UNKNOWN})",
        "frozenset()",
        "stats",
    ),
    reference("history is not capped", "del entries[:-MAX_HISTORY]", "pass", "history"),
    reference(
        "a change between two calls is forgotten",
        "with anyio.move_on_after(timeout):",
        "self._rung = False\n        with anyio.move_on_after(timeout):",
        "changed",
    ),
)
