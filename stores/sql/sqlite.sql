-- Statements of the SQLite store (needs SQLite 3.37).
--
-- A lane is a pair of task class and queue; a number stands for it in the rows, which keeps the indexes narrow.
-- Every lease walks only the lanes it may take from, so rows of other lanes cost nothing.
--
-- A partial index serves a query only where the query repeats the index's WHERE word by word: see the fragments.

-- fragment: ready
-- Never leased, or given back untouched.
task.result IS NULL AND task.owner IS NULL AND task.expires IS NULL

-- fragment: timed
-- Waits for a time: held, or waiting, or due. Parked rows have no bucket.
task.result IS NULL AND task.bucket IS NOT NULL

-- fragment: grace
-- Seconds from expires to the first second in which the row may be leased, by the kind in its bucket (task.due_at).
CASE bucket % 4 WHEN 0 THEN 0 WHEN 3 THEN 1 + :patience ELSE 1 END

-- fragment: columns
-- The order is known to sqlite_rows.py.
task.id, lane.task_class, lane.queue, task.priority, task.date_created, task.date_modified, task.owner, task.expires,
    task.failure_count, task.failure_time, task.object_phid, task.container_phid, task.idempotency_key,
    task.max_attempts, task.lost_count, task.result, task.duration_us, task.archived_epoch, task.spent

-- fragment: state
-- As task.state_of.
CASE
    WHEN task.owner IN ('gorge-completion-pending', 'gorge-failure-pending') THEN 'parked'
    WHEN task.owner IS NULL AND task.expires IS NULL THEN 'ready'
    WHEN task.expires <= :now - {grace} THEN 'ready'
    WHEN task.owner IS NULL OR (substr(task.owner, 1, 1) = '(' AND substr(task.owner, -1) = ')') THEN 'waiting'
    ELSE 'leased'
END

-- fragment: wanted
-- The filter of lists that active and archived rows share.
(:object_phid IS NULL OR task.object_phid = :object_phid)
    AND (:container_phid IS NULL OR task.container_phid = :container_phid)
    AND (:min_failures IS NULL OR task.failure_count >= :min_failures)
    AND (:max_failures IS NULL OR task.failure_count <= :max_failures)
    AND (:min_priority IS NULL OR task.priority >= :min_priority)
    AND (:max_priority IS NULL OR task.priority <= :max_priority)
    AND (:lanes IS NULL OR task.lane IN (SELECT value FROM json_each(:lanes)))

-- fragment: buckets
-- The buckets that hold a row, one seek each.
WITH RECURSIVE found (bucket) AS (
    SELECT min(bucket) FROM task INDEXED BY timed WHERE {timed}
    UNION ALL
    SELECT (SELECT min(bucket) FROM task INDEXED BY timed WHERE {timed} AND task.bucket > found.bucket)
    FROM found WHERE found.bucket IS NOT NULL
)

-- ---------------------------------------------------------------------------------------------- schema

-- name: schema
CREATE TABLE IF NOT EXISTS lane (
    id INTEGER PRIMARY KEY,
    task_class TEXT NOT NULL,
    queue TEXT NOT NULL,
    UNIQUE (task_class, queue)
) STRICT;

-- Active and archived tasks: result IS NULL means active, so that no task can be in both.
-- bucket = 4 * lane + how the row waits for `expires`: 0 due in that second (delays), 1 due one second later and
-- held by nobody (back-off, unknown), 2 one second later and counted as leased (yields, HTTP leases), 3 one
-- second and the patience later (our workers' leases).
-- spent: expiries of receipts that are never granted again, as spent_receipts.py writes them; normally NULL.
-- data: NULL where the payload is a large one and stands in `payload`, so that a lease does not rewrite it.
CREATE TABLE IF NOT EXISTS task (
    id INTEGER PRIMARY KEY,
    lane INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    owner TEXT,
    expires INTEGER,
    failure_count INTEGER NOT NULL DEFAULT 0,
    failure_time INTEGER,
    lost_count INTEGER NOT NULL DEFAULT 0,
    spent TEXT,
    date_created INTEGER NOT NULL,
    date_modified INTEGER NOT NULL,
    result INTEGER,
    duration_us INTEGER,
    archived_epoch INTEGER,
    object_phid TEXT,
    container_phid TEXT,
    idempotency_key TEXT,
    max_attempts INTEGER,
    data TEXT,
    bucket INTEGER GENERATED ALWAYS AS (
        CASE
            WHEN expires IS NULL THEN NULL
            WHEN owner IS NULL THEN 4 * lane
            WHEN substr(owner, 1, 3) = 'qr:' THEN 4 * lane + 3
            WHEN owner = '(delay)' THEN 4 * lane
            WHEN owner IN ('(retry)', '(unknown)') THEN 4 * lane + 1
            WHEN owner IN ('gorge-completion-pending', 'gorge-failure-pending') THEN NULL
            ELSE 4 * lane + 2
        END
    ) VIRTUAL
) STRICT;
CREATE INDEX IF NOT EXISTS ready ON task (lane, priority)
    WHERE result IS NULL AND owner IS NULL AND expires IS NULL;
CREATE INDEX IF NOT EXISTS timed ON task (bucket, expires, id, priority) WHERE result IS NULL AND bucket IS NOT NULL;
CREATE INDEX IF NOT EXISTS active ON task (priority, id, lane) WHERE result IS NULL;
CREATE INDEX IF NOT EXISTS failing ON task (failure_count) WHERE result IS NULL AND failure_count > 0;
-- Rows that others wrote: parked, or with an owner and no expiry. Never leased, normally none.
CREATE INDEX IF NOT EXISTS odd ON task (owner) WHERE result IS NULL AND owner IS NOT NULL AND bucket IS NULL;
CREATE INDEX IF NOT EXISTS archived ON task (id, lane, result) WHERE result IS NOT NULL;
CREATE INDEX IF NOT EXISTS over ON task (archived_epoch) WHERE result IS NOT NULL;

CREATE TABLE IF NOT EXISTS payload (task_id INTEGER PRIMARY KEY, data TEXT NOT NULL) STRICT;

CREATE TABLE IF NOT EXISTS attempt (
    id INTEGER PRIMARY KEY,
    task_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    kind TEXT NOT NULL,
    happened INTEGER NOT NULL,
    owner TEXT,
    duration_us INTEGER NOT NULL,
    message TEXT NOT NULL,
    trace TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS attempt_task ON attempt (task_id);

-- answer: the task as JSON, as it was when it was enqueued.
CREATE TABLE IF NOT EXISTS idempotency (
    key TEXT PRIMARY KEY, task_id INTEGER NOT NULL, answer TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS event (
    event_id TEXT PRIMARY KEY, digest TEXT NOT NULL, answer TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS pause (kind TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (kind, name)) STRICT, WITHOUT ROWID;

-- last_id: the last id handed out; it never goes back, whatever was deleted. The counts serve stats of large queues.
CREATE TABLE IF NOT EXISTS counter (
    one INTEGER PRIMARY KEY CHECK (one = 1), last_id INTEGER NOT NULL, active INTEGER NOT NULL, archived INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO counter (one, last_id, active, archived) VALUES (1, 0, 0, 0);

-- name: make_record
-- Only for a dispatch over the file, which asks it for a name. Files of older releases have none.
CREATE TABLE IF NOT EXISTS record (one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT NOT NULL) STRICT;

-- name: name_record
-- It keeps one that it has: a copy of the file has that of the original.
INSERT OR IGNORE INTO record (one, name) VALUES (1, lower(hex(randomblob(8))));

-- name: record
SELECT name FROM record;

-- ---------------------------------------------------------------------------------------------- enqueue

-- name: draw_ids
-- In: count. Out: the last id of the block; no row when there are not that many left.
UPDATE counter SET last_id = last_id + :count, active = active + :count
WHERE last_id + :count <= 4294967295 RETURNING last_id;

-- name: find_lane
SELECT id FROM lane WHERE task_class = ? AND queue = ?;

-- name: add_lane
INSERT INTO lane (task_class, queue) VALUES (?, ?) RETURNING id;

-- name: insert_task
-- Ends in the values of one row; for several rows they are repeated.
INSERT INTO task (id, lane, priority, owner, expires, date_created, date_modified, object_phid, container_phid,
    idempotency_key, max_attempts, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_payload
INSERT INTO payload (task_id, data) VALUES (?, ?);

-- name: try_room
-- A payload of no task, larger than a page.
INSERT INTO payload (task_id, data) VALUES (0, printf('%.*c', 8192, 'x'));

-- name: find_key
SELECT answer FROM idempotency WHERE key = ?;

-- name: insert_key
INSERT INTO idempotency (key, task_id, answer) VALUES (?, ?, ?);

-- name: find_event
SELECT digest, answer FROM event WHERE event_id = ?;

-- name: insert_event
INSERT INTO event (event_id, digest, answer) VALUES (?, ?, ?);

-- ---------------------------------------------------------------------------------------------- lease

-- name: lease_gates
-- Out: the newest lane, and whether anything is paused. Asked at every lease, because other processes write too.
SELECT (SELECT max(id) FROM lane), EXISTS (SELECT 1 FROM pause);

-- name: lanes
-- In: the newest that is known. Out: those after it.
SELECT id, task_class, queue FROM lane WHERE id > ? ORDER BY id;

-- name: many_lanes
-- In: how many are many.
SELECT EXISTS (SELECT 1 FROM lane LIMIT 1 OFFSET ?);

-- name: idle_lanes
-- Out: lanes without a row, with the last task id of this moment. Never the newest one: a number must not be given twice.
SELECT lane.id, counter.last_id FROM counter CROSS JOIN lane
WHERE lane.id < (SELECT max(id) FROM lane) AND lane.id NOT IN (
    SELECT lane FROM task INDEXED BY active WHERE task.result IS NULL
    UNION ALL SELECT lane FROM task INDEXED BY archived WHERE task.result IS NOT NULL
);

-- name: delete_lanes
-- In: ids (JSON) that `idle_lanes` found, and the last task id of then: rows that came since have larger ones.
DELETE FROM lane WHERE id IN (SELECT value FROM json_each(?1)) AND id NOT IN (SELECT lane FROM task WHERE id > ?2);

-- name: pick_ready
-- In: lanes (JSON; NULL: all), without (JSON), limit. Out: rows with data, by priority then id.
WITH RECURSIVE found (lane) AS (
    SELECT min(lane) FROM task INDEXED BY ready WHERE {ready} AND :lanes IS NULL
    UNION ALL
    SELECT (SELECT min(lane) FROM task INDEXED BY ready WHERE {ready} AND task.lane > found.lane)
    FROM found WHERE found.lane IS NOT NULL
), asked (lane) AS (
    SELECT lane FROM found WHERE lane IS NOT NULL UNION ALL SELECT value FROM json_each(:lanes)
)
SELECT {columns}, task.data
FROM (
    SELECT task.id AS chosen FROM asked CROSS JOIN task INDEXED BY ready ON task.lane = asked.lane
    WHERE {ready} AND task.id NOT IN (SELECT value FROM json_each(:without))
    ORDER BY task.priority, task.id LIMIT :limit
) CROSS JOIN task ON task.id = chosen CROSS JOIN lane ON lane.id = task.lane
ORDER BY task.priority, task.id;

-- name: pick_due
-- In: lanes, without, limit, now, patience, window. Out: as pick_ready, from the rows due longest.
-- Buckets are walked in the order of their first row: the window fills with old rows early, and a later bucket is
-- left at its first row that is younger than all of these.
{buckets}, asked (bucket) AS (
    SELECT bucket FROM found WHERE bucket IS NOT NULL AND :lanes IS NULL
    UNION ALL
    SELECT 4 * value + kind.column1 FROM json_each(:lanes) CROSS JOIN (VALUES (0), (1), (2), (3)) AS kind
), headed (bucket, due_by, head) AS (
    SELECT bucket, :now - {grace}, (
        SELECT min(task.expires) FROM task INDEXED BY timed WHERE {timed} AND task.bucket = asked.bucket
    ) FROM asked
), due (bucket, due_by) AS (
    SELECT bucket, due_by FROM headed WHERE head <= due_by ORDER BY head LIMIT 1000000
)
SELECT {columns}, task.data
FROM (
    SELECT id AS chosen FROM (
        SELECT task.id, task.priority FROM due CROSS JOIN task INDEXED BY timed ON task.bucket = due.bucket
        WHERE {timed} AND task.expires <= due.due_by AND task.id NOT IN (SELECT value FROM json_each(:without))
        ORDER BY task.expires, task.id LIMIT :window
    )
    ORDER BY priority, id LIMIT :limit
) CROSS JOIN task ON task.id = chosen CROSS JOIN lane ON lane.id = task.lane
ORDER BY task.priority, task.id;

-- name: pick_only
-- In: ids, lanes, without (JSON). Out: active rows with data; the caller looks at their times.
SELECT {columns}, task.data FROM task CROSS JOIN lane ON lane.id = task.lane
WHERE task.id IN (SELECT value FROM json_each(:ids)) AND task.result IS NULL
    AND (:lanes IS NULL OR task.lane IN (SELECT value FROM json_each(:lanes)))
    AND task.id NOT IN (SELECT value FROM json_each(:without));

-- name: take
-- In: owner, expires, ids that this transaction has picked.
UPDATE task SET owner = :owner, expires = :expires WHERE id IN (SELECT value FROM json_each(:ids));

-- name: count_losses
UPDATE task SET lost_count = lost_count + 1 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: archive_failed
UPDATE task SET result = 1, duration_us = 0, archived_epoch = :now, date_modified = :now
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: get_payload
SELECT data FROM payload WHERE task_id = ?;

-- ---------------------------------------------------------------------------------------------- settle and others

-- name: rows
-- In: ids (JSON). Out: active and archived rows.
SELECT {columns} FROM task CROSS JOIN lane ON lane.id = task.lane WHERE task.id IN (SELECT value FROM json_each(?));

-- name: complete
-- The fence was compared with the row that this transaction read; nobody else can write meanwhile.
UPDATE task SET result = 0, duration_us = ?2, archived_epoch = ?3, date_modified = ?3, lost_count = 0
WHERE id = ?1 AND result IS NULL;

-- name: write
-- The whole changeable part of a row, as `rows` read it and the rules changed it.
UPDATE task SET priority = ?2, owner = ?3, expires = ?4, failure_count = ?5, lost_count = ?6, date_modified = ?7,
    failure_time = ?8, spent = ?9, result = ?10, duration_us = ?11, archived_epoch = ?12
WHERE id = ?1;

-- name: renew
-- In: id, expires, spent.
UPDATE task SET expires = ?2, spent = ?3 WHERE id = ?1 AND result IS NULL;

-- name: count_ended
-- In: how many rows went from active to archived (negative: came back).
UPDATE counter SET active = active - ?1, archived = archived + ?1;

-- name: count_deleted
UPDATE counter SET archived = archived - ?;

-- name: insert_attempt
INSERT INTO attempt (task_id, attempt, kind, happened, owner, duration_us, message, trace) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: trim_attempts
-- In: task_id, how many to keep.
DELETE FROM attempt WHERE task_id = ?1
    AND id <= (SELECT id FROM attempt WHERE task_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2);

-- name: pauses
SELECT kind, name FROM pause ORDER BY kind, name;

-- name: pause
INSERT OR IGNORE INTO pause (kind, name) VALUES (?, ?);

-- name: resume
DELETE FROM pause WHERE kind = ? AND name = ?;

-- name: over
-- In: horizon, limit. Out: id and key of archived rows whose retention is over.
SELECT id, idempotency_key FROM task INDEXED BY over WHERE result IS NOT NULL AND archived_epoch <= ?
ORDER BY archived_epoch, id LIMIT ?;

-- name: delete_task
DELETE FROM task WHERE id = ?;

-- name: delete_payload
DELETE FROM payload WHERE task_id = ?;

-- name: delete_attempts
DELETE FROM attempt WHERE task_id = ?;

-- name: delete_key
DELETE FROM idempotency WHERE key = ?;

-- ---------------------------------------------------------------------------------------------- wake-up

-- name: data_version
-- Moves when another connection committed; own commits do not count.
PRAGMA data_version;

-- name: next_due
-- In: announced, patience. Out: the first moment after `announced` in which a row comes due; NULL: none.
{buckets}, waiting (bucket, grace) AS (SELECT bucket, {grace} FROM found WHERE bucket IS NOT NULL)
SELECT min(moment) FROM (
    SELECT grace + (
        SELECT min(task.expires) FROM task INDEXED BY timed
        WHERE {timed} AND task.bucket = waiting.bucket AND task.expires > :announced - waiting.grace
    ) AS moment
    FROM waiting
);

-- ---------------------------------------------------------------------------------------------- reading

-- name: get
-- In: ids (JSON). Out: active and archived rows with data.
SELECT {columns}, coalesce(task.data, payload.data)
FROM task CROSS JOIN lane ON lane.id = task.lane LEFT JOIN payload ON payload.task_id = task.id
WHERE task.id IN (SELECT value FROM json_each(?));

-- name: list_active
SELECT {columns} FROM task INDEXED BY active CROSS JOIN lane ON lane.id = task.lane
WHERE task.result IS NULL AND (task.priority, task.id) > (:after_priority, :after_id) AND {wanted}
    AND (:states IS NULL OR {state} IN (SELECT value FROM json_each(:states)))
ORDER BY task.priority, task.id LIMIT :limit OFFSET :offset;

-- name: list_timed
-- As list_active, for states that only rows with a time have: reads these rows alone.
SELECT {columns}
FROM (
    SELECT id AS chosen FROM task INDEXED BY timed
    WHERE {timed} AND (task.priority, task.id) > (:after_priority, :after_id)
        AND task.expires > :now - {grace} AND {wanted} AND {state} IN (SELECT value FROM json_each(:states))
    UNION ALL
    SELECT id FROM task INDEXED BY odd
    WHERE task.result IS NULL AND task.owner IS NOT NULL AND task.bucket IS NULL
        AND (task.priority, task.id) > (:after_priority, :after_id)
        AND {wanted} AND {state} IN (SELECT value FROM json_each(:states))
) CROSS JOIN task ON task.id = chosen CROSS JOIN lane ON lane.id = task.lane
ORDER BY task.priority, task.id LIMIT :limit OFFSET :offset;

-- name: list_archived
SELECT {columns} FROM task INDEXED BY archived CROSS JOIN lane ON lane.id = task.lane
WHERE task.result IS NOT NULL AND task.id < :before AND {wanted}
    AND (:results IS NULL OR task.result IN (SELECT value FROM json_each(:results)))
    AND (:ended_since IS NULL OR task.archived_epoch >= :ended_since)
ORDER BY task.id DESC LIMIT :limit;

-- name: history
-- In: ids (JSON).
SELECT task_id, attempt, kind, happened, owner, duration_us, message, trace FROM attempt
WHERE task_id IN (SELECT value FROM json_each(?)) ORDER BY id;

-- name: stats
-- In: now, limit. Out: active, leased, archived, failing (each at most limit), parked, parked and failing, and the
-- kept counts of active and archived.
{buckets}
SELECT
    (SELECT count(*) FROM (SELECT 1 FROM task INDEXED BY active WHERE task.result IS NULL LIMIT :limit)),
    (SELECT count(*) FROM (
        SELECT 1 FROM found CROSS JOIN task INDEXED BY timed ON task.bucket = found.bucket
        WHERE {timed} AND found.bucket % 4 >= 2 AND task.expires >= :now LIMIT :limit
    )),
    (SELECT count(*) FROM (SELECT 1 FROM task INDEXED BY archived WHERE task.result IS NOT NULL LIMIT :limit)),
    (SELECT count(*) FROM (
        SELECT 1 FROM task INDEXED BY failing WHERE task.result IS NULL AND task.failure_count > 0 LIMIT :limit
    )),
    count(task.id), count(CASE WHEN task.failure_count > 0 THEN 1 END), counter.active, counter.archived
FROM counter LEFT JOIN task INDEXED BY odd
    ON task.result IS NULL AND task.owner IS NOT NULL AND task.bucket IS NULL
    AND task.owner IN ('gorge-completion-pending', 'gorge-failure-pending');

-- name: backlog
-- In: now, patience. Out: class, queue, priority, count, and when the first of them was enqueued. Ids are drawn in
-- the order of time, so the smallest id stands for the oldest row and the rows themselves need not be read.
SELECT lane.task_class, lane.queue, counted.priority, counted.waiting, task.date_created
FROM (
    SELECT place, priority, sum(waiting) AS waiting, min(first) AS first FROM (
        SELECT lane AS place, priority, count(*) AS waiting, min(id) AS first
        FROM task INDEXED BY ready WHERE {ready} GROUP BY lane, priority
        UNION ALL
        SELECT bucket / 4, priority, count(*), min(id)
        FROM task INDEXED BY timed WHERE {timed} AND expires <= :now - {grace} GROUP BY bucket / 4, priority
    ) GROUP BY place, priority
) AS counted CROSS JOIN task ON task.id = counted.first CROSS JOIN lane ON lane.id = counted.place
ORDER BY lane.task_class, lane.queue, counted.priority;

-- name: table_sizes
-- Out: rows of the small tables; the largest id stands for those that only grow.
SELECT
    (SELECT count(*) FROM lane), (SELECT count(*) FROM pause), (SELECT last_id FROM counter),
    (SELECT active FROM counter), (SELECT archived FROM counter);
