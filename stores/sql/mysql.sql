-- Statements of the MySQL store, on Phorge's own tables and the companion database.
--
-- Fragments that come from the server at hand: worker and companion (database names), skip_locked, patience. Without
-- a companion, `extra_columns` and `extras` are replaced too.
-- Rows are locked by primary key, inside a derived table: a join that locks would lock the payloads as well, and a
-- payload that somebody else has locked would come back as NULL. FORCE INDEX, because on a small table the optimizer
-- prefers a scan, which locks rows of strangers.

-- fragment: extra_columns
x.queue, x.idempotency_key, x.max_attempts, x.lost_count, x.spent

-- fragment: extras
LEFT JOIN {companion}.task_extra x ON x.task_id = a.id AND x.date_created = a.dateCreated

-- fragment: queue_column
x.queue

-- fragment: queues
-- As extras, for candidates.
LEFT JOIN {companion}.task_extra x ON x.task_id = a.id AND x.date_created = a.dateCreated

-- fragment: columns
-- The order is known to mysql_rows.py.
a.id, a.taskClass, a.leaseOwner, a.leaseExpires, a.failureCount, a.dataID, a.failureTime, a.priority, a.objectPHID,
    a.dateCreated, a.dateModified, a.containerPHID, {extra_columns}

-- fragment: archive_columns
a.id, a.taskClass, a.leaseOwner, a.leaseExpires, a.failureCount, a.dataID, a.result, a.duration, a.priority, a.objectPHID,
    a.dateCreated, a.dateModified, a.archivedEpoch, a.containerPHID, {extra_columns}

-- fragment: payload
-- Small payloads come with their rows; of large ones only the size, so that a lease stays within its bytes.
IF(OCTET_LENGTH(d.data) <= 16384, d.data, NULL), OCTET_LENGTH(d.data)

-- fragment: ready
-- Never leased, or given back untouched.
leaseOwner IS NULL AND leaseExpires IS NULL

-- fragment: due
-- As task.due_at: a delay in its own second, everything else one second after its last one; the expired lease of one
-- of our workers when the patience is over too. Parked rows never.
leaseExpires <= :now AND (
    leaseOwner IS NULL OR leaseOwner = '(delay)' OR (
        leaseExpires < :now - IF(leaseOwner LIKE 'qr:%', {patience}, 0)
        AND leaseOwner NOT IN ('gorge-completion-pending', 'gorge-failure-pending')
    )
)

-- fragment: state
-- As task.state_of.
CASE
    WHEN a.leaseOwner IN ('gorge-completion-pending', 'gorge-failure-pending') THEN 'parked'
    WHEN a.leaseOwner IS NULL AND a.leaseExpires IS NULL THEN 'ready'
    WHEN a.leaseExpires <= :now AND (a.leaseOwner IS NULL OR a.leaseOwner = '(delay)') THEN 'ready'
    WHEN a.leaseExpires < :now - IF(a.leaseOwner LIKE 'qr:%', {patience}, 0)
        AND a.leaseOwner IS NOT NULL AND a.leaseOwner <> '(delay)' THEN 'ready'
    WHEN a.leaseOwner IS NULL OR a.leaseOwner LIKE '(%)' THEN 'waiting'
    ELSE 'leased'
END

-- ---------------------------------------------------------------------------------------------- companion

-- name: schema
CREATE DATABASE IF NOT EXISTS {companion} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- queue: NULL where the task named none and is routed by its class. spent: as spent_receipts.py writes it.
CREATE TABLE IF NOT EXISTS {companion}.task_extra (
    task_id INT UNSIGNED NOT NULL PRIMARY KEY,
    date_created INT UNSIGNED NOT NULL,
    queue VARCHAR(64) NULL,
    idempotency_key VARBINARY(255) NULL,
    max_attempts INT UNSIGNED NULL,
    lost_count INT UNSIGNED NOT NULL DEFAULT 0,
    spent TEXT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {companion}.attempt (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    task_id INT UNSIGNED NOT NULL,
    date_created INT UNSIGNED NOT NULL,
    attempt INT UNSIGNED NOT NULL,
    kind VARCHAR(16) NOT NULL,
    happened INT UNSIGNED NOT NULL,
    owner VARCHAR(255) NULL,
    duration_us BIGINT UNSIGNED NOT NULL,
    message TEXT NOT NULL,
    trace TEXT NOT NULL,
    KEY task (task_id, id)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- answer: the task as JSON, as it was when it was enqueued.
CREATE TABLE IF NOT EXISTS {companion}.idempotency (
    idempotency_key VARBINARY(255) NOT NULL PRIMARY KEY,
    task_id INT UNSIGNED NOT NULL,
    date_created INT UNSIGNED NOT NULL,
    answer TEXT NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {companion}.event (
    event_id VARBINARY(128) NOT NULL PRIMARY KEY,
    digest VARCHAR(64) NOT NULL,
    answer TEXT NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {companion}.pause (
    kind VARCHAR(8) NOT NULL,
    name VARBINARY(64) NOT NULL,
    PRIMARY KEY (kind, name)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {companion}.meta (
    name VARCHAR(32) NOT NULL PRIMARY KEY,
    value VARCHAR(255) NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- name: name_record
-- In: name. It keeps one that it has: a copy of the database has that of the original.
INSERT IGNORE INTO {companion}.meta (name, value) VALUES ('record', :name);

-- ---------------------------------------------------------------------------------------------- enqueue

-- name: draw_ids
-- In: count. The insert id of the answer is the last id of the block; 0 where there are not that many left.
INSERT INTO {worker}.lisk_counter (counterName, counterValue) VALUES ('worker_activetask', LAST_INSERT_ID(:count))
ON DUPLICATE KEY UPDATE counterValue = IF(
    counterValue + :count <= 4294967295, LAST_INSERT_ID(counterValue + :count), counterValue + LAST_INSERT_ID(0)
);

-- name: lock_counter
-- An error at once where somebody else has it locked.
SELECT counterValue FROM {worker}.lisk_counter WHERE counterName = 'worker_activetask' FOR UPDATE {nowait};

-- fragment: used
-- An id beyond 4,000,000,000 is somebody's mistake: a counter moved past it would leave no ids, for Phorge either.
SELECT GREATEST(
    COALESCE((SELECT MAX(id) FROM {worker}.worker_activetask WHERE id < 4000000000), 0),
    COALESCE((SELECT MAX(id) FROM {worker}.worker_archivetask WHERE id < 4000000000), 0)
) AS top

-- fragment: behind
used.top > COALESCE((SELECT counterValue FROM {worker}.lisk_counter WHERE counterName = 'worker_activetask'), 0)

-- name: counter_behind
-- The highest id in use, where the counter has fallen behind it (a restored backup, a lost row).
SELECT used.top FROM ({used}) used WHERE {behind};

-- name: lift_counter
-- Moves the counter past every id in use.
INSERT INTO {worker}.lisk_counter (counterName, counterValue)
SELECT 'worker_activetask', used.top FROM ({used}) used WHERE {behind}
ON DUPLICATE KEY UPDATE counterValue = GREATEST(counterValue, used.top);

-- fragment: drawn
id > CAST(LAST_INSERT_ID() AS SIGNED) - :count AND id <= LAST_INSERT_ID()

-- name: drawn_in_use
-- In: count. Whether an id of the block that this connection has just drawn is in use: a counter that was lost begins anew.
SELECT EXISTS (SELECT 1 FROM {worker}.worker_activetask WHERE {drawn})
    OR EXISTS (SELECT 1 FROM {worker}.worker_archivetask WHERE {drawn});

-- name: read_counter
SELECT counterValue FROM {worker}.lisk_counter WHERE counterName = 'worker_activetask';

-- name: touch_counter
-- A write that changes nothing, to see whether the server takes writes.
UPDATE {worker}.lisk_counter SET counterValue = counterValue WHERE counterName = 'worker_activetask';

-- fragment: very_task
a.id = :id AND a.dateCreated = :created AND a.dataID = :data_id AND CAST(a.taskClass AS BINARY) = :task_class
    AND SHA2(d.data, 256) = :digest

-- name: exists_task
-- In: id, created, data_id, task_class, digest. Whether this very task was committed and is still there: somebody else's
-- may have got its id, from a server that did not have the transaction.
SELECT a.id FROM {worker}.worker_activetask a JOIN {worker}.worker_taskdata d ON d.id = a.dataID WHERE {very_task}
UNION SELECT a.id FROM {worker}.worker_archivetask a JOIN {worker}.worker_taskdata d ON d.id = a.dataID WHERE {very_task};

-- name: insert_payloads
-- In: rows (`(data),(data)`). The insert id of the answer is that of the first; the others follow by the server's step.
INSERT INTO {worker}.worker_taskdata (data) VALUES :rows;

-- name: insert_tasks
-- In: rows.
INSERT INTO {worker}.worker_activetask (id, taskClass, leaseOwner, leaseExpires, failureCount, dataID, failureTime, priority,
    objectPHID, dateCreated, dateModified, containerPHID) VALUES :rows;

-- name: insert_extras
-- In: rows (task_id, date_created, queue, idempotency_key, max_attempts). What a former task of the same id left goes.
REPLACE INTO {companion}.task_extra (task_id, date_created, queue, idempotency_key, max_attempts) VALUES :rows;

-- name: time
SELECT :now;

-- name: find_keys
-- In: keys.
SELECT idempotency_key, answer FROM {companion}.idempotency WHERE idempotency_key IN (:keys);

-- name: insert_keys
-- In: rows (key, task_id, date_created, answer). A key that somebody else has inserted meanwhile is error 1062.
INSERT INTO {companion}.idempotency (idempotency_key, task_id, date_created, answer) VALUES :rows;

-- name: find_event
SELECT digest, answer FROM {companion}.event WHERE event_id = :event_id;

-- name: insert_event
INSERT INTO {companion}.event (event_id, digest, answer) VALUES (:event_id, :digest, :answer);

-- name: find_inbox
-- The Go service's receipts.
SELECT payloadHash, response FROM {worker}.worker_gorgeinbox WHERE eventID = :event_id;

-- name: insert_inbox
INSERT INTO {worker}.worker_gorgeinbox (eventID, payloadHash, response) VALUES (:event_id, :digest, :answer);

-- ---------------------------------------------------------------------------------------------- lease

-- name: pauses
SELECT kind, name FROM {companion}.pause ORDER BY kind, name;

-- fragment: further
(priority > :front_priority OR (priority = :front_priority AND id > :front_id))

-- name: take_ready
-- In: limit, without, and the place after which it begins. The unfiltered phase 1: picks and locks in one statement.
SELECT {columns}, {payload} FROM (
    SELECT * FROM {worker}.worker_activetask FORCE INDEX (key_owner)
    WHERE {ready} AND id NOT IN (:without) AND {further}
    ORDER BY priority, id LIMIT :limit FOR UPDATE {skip_locked}
) a LEFT JOIN {worker}.worker_taskdata d ON d.id = a.dataID {extras}
ORDER BY a.priority, a.id;

-- fragment: of_classes
-- As bytes, because the collation takes 'A ' for 'A'.
(:every_class OR CAST(taskClass AS BINARY) IN (:classes)) AND CAST(taskClass AS BINARY) NOT IN (:not_classes)

-- name: glance
-- In: depth, a filter of classes, and the place after which it begins. Out: how many rows the queue has from there up
-- to this depth, how many of them are ready and pass, the place of the first that does (priority * 2^32 + id), and that
-- of the last of all. No locks.
SELECT COUNT(*), COALESCE(SUM(leaseExpires IS NULL AND {of_classes}), 0),
    COALESCE(MIN(IF(leaseExpires IS NULL AND {of_classes}, priority * 4294967296 + id, NULL)), 1),
    COALESCE(MAX(priority * 4294967296 + id), 0) FROM (
    SELECT id, priority, taskClass, leaseExpires FROM {worker}.worker_activetask FORCE INDEX (key_owner)
    WHERE leaseOwner IS NULL AND {further} ORDER BY priority, id LIMIT :depth
) head;

-- name: take_head
-- In: limit, without, a filter of classes, and the places after which it begins and beyond which nothing is touched.
-- Picks and locks.
SELECT {columns}, {payload} FROM (
    SELECT * FROM {worker}.worker_activetask FORCE INDEX (key_owner)
    WHERE {ready} AND id NOT IN (:without) AND {of_classes} AND {further}
        AND (priority < :last_priority OR (priority = :last_priority AND id <= :last_id))
    ORDER BY priority, id LIMIT :limit FOR UPDATE {skip_locked}
) a LEFT JOIN {worker}.worker_taskdata d ON d.id = a.dataID {extras}
ORDER BY a.priority, a.id;

-- name: lock_ready
-- In: ids, now, limit. The first of the candidates, by id, that are still ready and that nobody has locked.
SELECT {columns}, {payload} FROM (
    SELECT * FROM {worker}.worker_activetask FORCE INDEX (PRIMARY) WHERE id IN (:ids) AND {ready}
    ORDER BY id LIMIT :limit FOR UPDATE {skip_locked}
) a LEFT JOIN {worker}.worker_taskdata d ON d.id = a.dataID {extras}
ORDER BY a.priority, a.id;

-- name: lock_due
-- In: ids, now, limit.
SELECT {columns}, {payload} FROM (
    SELECT * FROM {worker}.worker_activetask FORCE INDEX (PRIMARY) WHERE id IN (:ids) AND {due}
    ORDER BY id LIMIT :limit FOR UPDATE {skip_locked}
) a LEFT JOIN {worker}.worker_taskdata d ON d.id = a.dataID {extras}
ORDER BY a.priority, a.id;

-- fragment: candidate_columns
a.id, a.priority, a.taskClass, {queue_column}

-- name: walk_ready
-- In: after_priority, after_id, limit. Rows of phase 1 and delays that PHP wrote, from this place on; no locks.
SELECT {candidate_columns}, a.leaseExpires FROM (
    SELECT id, priority, taskClass, leaseExpires, dateCreated FROM {worker}.worker_activetask FORCE INDEX (key_owner)
    WHERE leaseOwner IS NULL AND (priority > :after_priority OR (priority = :after_priority AND id > :after_id))
    ORDER BY priority, id LIMIT :limit
) a {queues} ORDER BY a.priority, a.id;

-- name: count_classes
-- In: names, limit. How many rows these classes have, counted no further than the limit.
SELECT COUNT(*) FROM (
    SELECT 1 FROM {worker}.worker_activetask FORCE INDEX (taskClass) WHERE taskClass IN (:names) LIMIT :limit
) counted;

-- name: count_delayed
-- In: limit. How many of the first rows without owner are delays that PHP wrote, which phase 1 has to step over.
SELECT COUNT(*) FROM (
    SELECT leaseExpires FROM {worker}.worker_activetask FORCE INDEX (key_owner) WHERE leaseOwner IS NULL
    ORDER BY priority, id LIMIT :limit
) head WHERE head.leaseExpires IS NOT NULL;

-- name: ready_of_classes
-- In: names (few rows), a filter of classes, limit. No locks.
SELECT {candidate_columns}, a.leaseExpires FROM (
    SELECT id, priority, taskClass, leaseExpires, dateCreated FROM {worker}.worker_activetask FORCE INDEX (taskClass)
    WHERE taskClass IN (:names) AND {ready} AND {of_classes} ORDER BY priority, id LIMIT :limit
) a {queues} ORDER BY a.priority, a.id;

-- name: walk_classes
-- In: names, after_class, after_id, limit. Rows of these classes; those that are not ready have an expiry or owner, and
-- come back with an expiry that is not NULL. No locks.
SELECT {candidate_columns}, a.taken FROM (
    SELECT id, priority, taskClass, dateCreated, IF({ready}, NULL, 0) AS taken
    FROM {worker}.worker_activetask FORCE INDEX (taskClass)
    WHERE taskClass IN (:names) AND (taskClass > :after_class OR (taskClass = :after_class AND id > :after_id))
    ORDER BY taskClass, id LIMIT :limit
) a {queues} ORDER BY a.taskClass, a.id;

-- fragment: past
-- The next rows whose expiry is past, whatever they are.
leaseExpires <= :now AND (leaseExpires > :after_expires OR (leaseExpires = :after_expires AND id > :after_id))
    ORDER BY leaseExpires, id LIMIT :limit

-- name: due_step
-- In: now, limit, a place (after_expires, after_id), without, a filter of classes, count. Among the next `limit` past rows
-- those due longest that pass, by priority; no locks.
SELECT {candidate_columns}, a.leaseExpires FROM (
    SELECT past.* FROM (
        SELECT id, priority, taskClass, leaseOwner, leaseExpires, dateCreated
        FROM {worker}.worker_activetask FORCE INDEX (leaseExpires) WHERE {past}
    ) past WHERE {due} AND id NOT IN (:without) AND {of_classes} ORDER BY leaseExpires, id LIMIT 1000
) a {queues} ORDER BY a.priority, a.id LIMIT :count;

-- name: due_end
-- In: now, limit, a place. How many rows due_step has looked at, and the last of them (expiry * 2^32 + id).
SELECT COUNT(*), COALESCE(MAX(leaseExpires * 4294967296 + id), 0) FROM (
    SELECT id, leaseExpires FROM {worker}.worker_activetask FORCE INDEX (leaseExpires) WHERE {past}
) past;

-- name: due_of_classes
-- In: names (few rows), now, without, a filter of classes, count. No locks.
SELECT {candidate_columns}, a.leaseExpires FROM (
    SELECT id, priority, taskClass, leaseExpires, dateCreated FROM {worker}.worker_activetask FORCE INDEX (taskClass)
    WHERE taskClass IN (:names) AND {due} AND id NOT IN (:without) AND {of_classes}
    ORDER BY leaseExpires, id LIMIT 1000
) a {queues} ORDER BY a.priority, a.id LIMIT :count;

-- name: lock_named
-- In: ids and how many, now, a filter of classes. All of these that are ready or due and that nobody has locked.
SELECT {columns}, {payload} FROM (
    SELECT * FROM {worker}.worker_activetask FORCE INDEX (PRIMARY)
    WHERE id IN (:ids) AND (({ready}) OR ({due})) AND {of_classes} ORDER BY id LIMIT :limit FOR UPDATE {skip_locked}
) a LEFT JOIN {worker}.worker_taskdata d ON d.id = a.dataID {extras}
ORDER BY a.priority, a.id;

-- name: candidates_of
-- In: ids, now. Rows of these that are ready (due: 0) or due (due: 1); no locks.
SELECT {candidate_columns}, a.leaseExpires, a.due FROM (
    SELECT id, priority, taskClass, leaseExpires, dateCreated, ({due}) IS TRUE AS due
    FROM {worker}.worker_activetask FORCE INDEX (PRIMARY)
    WHERE id IN (:ids) AND (({ready}) OR ({due}))
) a {queues} ORDER BY a.leaseExpires, a.id;

-- name: read_extras
-- In: ids that are locked. Read after the lock, because a snapshot may be older than it.
SELECT a.id, {extra_columns} FROM {worker}.worker_activetask a FORCE INDEX (PRIMARY) {extras} WHERE a.id IN (:ids);

-- name: take
-- In: owner, expires, ids that this transaction has locked.
UPDATE {worker}.worker_activetask FORCE INDEX (PRIMARY) SET leaseOwner = :owner, leaseExpires = :expires WHERE id IN (:ids);

-- name: payloads
-- In: ids of payloads.
SELECT id, data FROM {worker}.worker_taskdata WHERE id IN (:ids);

-- ---------------------------------------------------------------------------------------------- settle and others

-- The LIMIT of the next ones keeps MariaDB from merging the derived table into the join, which would read the extras of
-- each row in one snapshot with the first lock: they may be older than the last one.

-- name: lock_rows
-- In: ids, now. Out: the rows of these that nobody else has locked, and the time.
SELECT {columns} FROM (
    SELECT * FROM {worker}.worker_activetask FORCE INDEX (PRIMARY) WHERE id IN (:ids)
    ORDER BY id LIMIT 1000000 FOR UPDATE {skip_locked}
) a {extras};

-- name: wait_rows
-- The same, but waits for rows that somebody else has locked.
SELECT {columns} FROM (
    SELECT * FROM {worker}.worker_activetask FORCE INDEX (PRIMARY) WHERE id IN (:ids)
    ORDER BY id LIMIT 1000000 FOR UPDATE
) a {extras};

-- name: see_rows
-- In: ids. Active rows as they are committed, whoever has locked them.
SELECT {columns} FROM {worker}.worker_activetask a FORCE INDEX (PRIMARY) {extras} WHERE a.id IN (:ids);

-- name: see_archived
-- In: ids.
SELECT {archive_columns} FROM {worker}.worker_archivetask a FORCE INDEX (PRIMARY) {extras} WHERE a.id IN (:ids);

-- name: lock_archived
-- In: ids. Archived rows, for a retry: those that nobody else has locked.
SELECT {archive_columns} FROM (
    SELECT * FROM {worker}.worker_archivetask FORCE INDEX (PRIMARY) WHERE id IN (:ids)
    ORDER BY id LIMIT 1000000 FOR UPDATE {skip_locked}
) a {extras};

-- name: wait_archived
-- The same, but waits for rows that somebody else has locked.
SELECT {archive_columns} FROM (
    SELECT * FROM {worker}.worker_archivetask FORCE INDEX (PRIMARY) WHERE id IN (:ids)
    ORDER BY id LIMIT 1000000 FOR UPDATE
) a {extras};

-- name: insert_archived
-- In: rows that this transaction has locked and read.
INSERT INTO {worker}.worker_archivetask (id, taskClass, leaseOwner, leaseExpires, failureCount, dataID, result, duration,
    priority, objectPHID, dateCreated, dateModified, archivedEpoch, containerPHID) VALUES :rows;

-- name: replace_archived
-- Where a row of the same id is in the archive already, because an id was issued twice: the newer one stays.
REPLACE INTO {worker}.worker_archivetask (id, taskClass, leaseOwner, leaseExpires, failureCount, dataID, result, duration,
    priority, objectPHID, dateCreated, dateModified, archivedEpoch, containerPHID) VALUES :rows;

-- name: delete_active
-- In: ids, count. ORDER BY and LIMIT keep the optimizer from scanning a small table, which would lock strangers' rows.
DELETE FROM {worker}.worker_activetask WHERE id IN (:ids) ORDER BY id LIMIT :count;

-- name: delete_archived
DELETE FROM {worker}.worker_archivetask WHERE id IN (:ids) ORDER BY id LIMIT :count;

-- name: update_rows
-- In: the changeable part of a row, and the ids that get it.
UPDATE {worker}.worker_activetask FORCE INDEX (PRIMARY)
SET leaseOwner = :owner, leaseExpires = :expires, failureCount = :failures, failureTime = :failure_time,
    priority = :priority, dateModified = :modified
WHERE id IN (:ids);

-- name: renew
UPDATE {worker}.worker_activetask FORCE INDEX (PRIMARY) SET leaseExpires = :expires WHERE id IN (:ids);

-- name: write_extras
-- In: rows (task_id, date_created, lost_count, spent). What a former task of the same id left goes.
INSERT INTO {companion}.task_extra (task_id, date_created, lost_count, spent) VALUES :rows
ON DUPLICATE KEY UPDATE
    queue = IF(date_created = VALUES(date_created), queue, NULL),
    idempotency_key = IF(date_created = VALUES(date_created), idempotency_key, NULL),
    max_attempts = IF(date_created = VALUES(date_created), max_attempts, NULL),
    lost_count = VALUES(lost_count), spent = VALUES(spent), date_created = VALUES(date_created);

-- name: insert_attempts
-- In: rows.
INSERT INTO {companion}.attempt (task_id, date_created, attempt, kind, happened, owner, duration_us, message, trace)
VALUES :rows;

-- name: trim_attempts
-- In: task_id, keep. Deletes all but the newest.
DELETE FROM {companion}.attempt WHERE task_id = :task_id AND id <= COALESCE((
    SELECT id FROM (SELECT id FROM {companion}.attempt WHERE task_id = :task_id ORDER BY id DESC LIMIT 1 OFFSET :keep) kept
), 0);

-- name: pause
INSERT IGNORE INTO {companion}.pause (kind, name) VALUES (:kind, :name);

-- name: resume
DELETE FROM {companion}.pause WHERE kind = :kind AND name = :name;
