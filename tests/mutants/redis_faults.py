"""Faults in the Redis store: in its scripts, and in the Python around them."""

from tests.mutants.mutant import Mutant


def lua(name: str, script: str, old: str, new: str, *caught_by: str) -> Mutant:
    """A fault in a script or a fragment."""
    return Mutant(name, "redis", f"stores/lua/{script}.lua", ((old, new),), caught_by)


def redis(name: str, module: str, old: str, new: str, *caught_by: str) -> Mutant:
    """A fault in a module."""
    return Mutant(name, "redis", f"stores/{module}.py", ((old, new),), caught_by)


REDIS_FAULTS: tuple[Mutant, ...] = (
    # ---- lease
    lua(
        "due work by id alone on Redis",
        "lease",
        "return by_priority(ids, priorities)\nend\n\n-- The two phases",
        "table.sort(ids)\n  return ids\nend\n\n-- The two phases",
        "lease_order",
    ),
    lua(
        "a lease on Redis looks at one due row too few",
        "lease",
        "local WINDOW = 1000",
        "local WINDOW = 999",
        "lease_window",
    ),
    lua(
        "equal priorities of two lanes in any order",
        "fragments/lanes",
        "return one.score < other.score or (one.score == other.score and one.id < other.id)",
        "return one.score < other.score",
        "lanes",
    ),
    lua(
        "a lane whose first row is gone is where it was",
        "fragments/heads",
        "if first.member == was.member and first.score == was.score then",
        "if was.member then",
        "lanes",
        "lease_order",
    ),
    lua(
        "nobody finds what a dead worker held",
        "fragments/heads",
        "call('ZADD', heads_key(kind, queue), 'LT', bound, BOUND .. class)",
        "",
        "losses",
    ),
    lua(
        "a bound is raised and never lowered",
        "fragments/heads",
        "call('ZADD', heads_key(kind, queue), 'LT', bound, BOUND .. class)",
        "call('ZADD', heads_key(kind, queue), 'GT', bound, BOUND .. class)",
        "lanes",
        "due_times",
        "losses",
    ),
    lua(
        "heads of other classes pass",
        "fragments/lanes",
        "until not source.passes or source.passes(source.name)",
        "until true",
        "lease_filters",
    ),
    lua("due rows come first always", "lease", "ARGV[7] == '1'", "true", "lease_order"),
    lua("the window is half as large", "lease", "local WINDOW = 1000", "local WINDOW = 500", "lanes"),
    lua("the bound of bytes counts nothing", "lease", "bytes = bytes + size\n", "", "lease_order"),
    lua("long payloads do not count", "lease", "size = call('HSTRLEN', DATA, id)", "size = 0", "lease_order"),
    lua(
        "ids to leave out are leased",
        "fragments/lanes",
        "if not skip[source.id] then",
        "if true then",
        "lease_filters",
    ),
    lua(
        "named ids are leased though they are left out",
        "lease",
        "    if not skip[id] then",
        "    if id then",
        "lease_filters",
    ),
    lua(
        "named ids are leased out of a paused lane", "lease", " and filter.lane(row.lane)", "", "pause", "lease_filters"
    ),
    lua(
        "a pause of a queue is ignored on Redis",
        "fragments/lanes",
        " and not paused['queue:' .. queue]",
        "",
        "pause",
    ),
    lua(
        "left out classes are leased on Redis",
        "fragments/lanes",
        " and not without_classes[class]",
        "",
        "lease_filters",
    ),
    lua(
        "patience is forgotten",
        "fragments/base",
        "return kind == 'W' and 1 + patience or 1",
        "return 1",
        "due_times",
    ),
    lua(
        "delays wait a second longer on Redis",
        "fragments/base",
        "if kind == 'D' then\n    return 0",
        "if kind == 'D' then\n    return 1",
        "due_times",
    ),
    lua(
        "parked rows are due on Redis",
        "fragments/layout",
        "  if PARKED[owner] then\n    return nil\n  end\n  return (is",
        "  return (is",
        "parked",
    ),
    lua("one loss more than allowed", "lease", "if row.lost >= max_lost then", "if row.lost > max_lost then", "losses"),
    # ---- fences
    lua(
        "a receipt is alive in the second of its expiry on Redis",
        "fragments/rules",
        "and row.expires > now)",
        "and row.expires >= now)",
        "fences",
    ),
    lua("sentinels fence on Redis", "fragments/rules", " or is_sentinel(owner) or PARKED[owner]", "", "fences"),
    lua("receipts are not spent", "fragments/rules", "if not is_receipt(row.owner) or", "if true or", "fences"),
    lua(
        "a fresh row forgets what was spent",
        "lease",
        "state and first_unspent(sub(state, 21), owner, expires) or expires",
        "expires",
        "fences",
    ),
    lua(
        "an end forgets what was spent",
        "fragments/layout",
        "string.char(#row.spent / 8) .. row.spent",
        "'\\0'",
        "fences",
    ),
    lua("renew shortens on Redis", "renew", "if (row.expires or 0) < wanted then", "if true then", "renew"),
    lua("a repeat needs no owner", "settle", "    and row.owner == owner and not is_sentinel(owner)\n", "", "replays"),
    # ---- outcomes
    lua(
        "follow-ups get the default priority on Redis",
        "fragments/insert",
        "priority = task.parent_priority",
        "priority = 2000",
        "followups",
    ),
    lua(
        "follow-ups of a lost outcome are enqueued",
        "settle",
        "read_followups(outcome[6], valid and row)",
        "read_followups(outcome[6], row)",
        "followups",
    ),
    lua("success does not clear the losses on Redis", "settle", "    row.lost = 0\n", "", "losses"),
    lua("a yield has no floor on Redis", "settle", "math.max(outcome[5], YIELD_FLOOR)", "outcome[5]", "giving_back"),
    lua("waits run past the largest epoch", "settle", "math.min(now + seconds, U32)", "now + seconds", "due_times"),
    lua(
        "the class's maximum wins over the task's",
        "settle",
        "if maximum == 0 then",
        "if outcome[6] > 0 then",
        "max_attempts",
    ),
    lua("histories are not capped on Redis", "fragments/rows", "-MAX_HISTORY, -1)", "0, -1)", "history"),
    lua(
        "retention counts from the enqueue on Redis",
        "fragments/rows",
        "later('ZADD', OVER, now, id)",
        "later('ZADD', OVER, (struct.unpack('>I4', row.body)), id)",
        "retention",
    ),
    # ---- enqueue
    lua(
        "a key is not known within its call",
        "fragments/insert",
        "      known[task.key], bodies[id] = id, body\n",
        "",
        "idempotency",
    ),
    lua("histories outlive their tasks on Redis", "sweep", "call('UNLINK', unpack", "tostring(unpack", "retention"),
    redis(
        "an event is not compared on Redis",
        "redis_enqueue",
        "if answer[2:end] != digest.encode():",
        "if False:",
        "events",
    ),
    # ---- operators, reading, signals
    lua("a yield that has failed is awakened on Redis", "awaken", " and row.failures == 0", "", "operators"),
    lua("free keeps the owner", "free", "give_back(row, nil, now)", "give_back(row, row.owner, now)", "operators"),
    lua("delay takes held rows on Redis", "delay", " and (not row.owner or row.owner == '(delay)')", "", "operators"),
    lua("successes come back unasked", "retry", "(repeats or row.result ~= 0)", "true", "retry"),
    lua("a page repeats its last row", "list_active", "[1] <= id then", "[1] < id then", "lists"),
    lua("waiting rows count as held", "stats", "{ 'H', 'W' }", "{ 'D', 'B', 'H', 'W' }", "stats"),
    lua("an enqueue rings no bell", "enqueue", "end_orders(over)\nring()\n", "end_orders(over)\n", "changed"),
    lua("rows coming due are not told of", "changed", "{ 'D', 'B', 'H', 'W' }", "{}", "changed"),
)
