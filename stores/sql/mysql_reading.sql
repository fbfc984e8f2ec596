-- Statements that read, that wake the worker, and that clean up. Loaded after mysql.sql, whose fragments they use.
--
-- Lists pick ids first, from an index that holds all they need where that is possible, and then read the rows of one
-- page. On Phorge's tables an index in the order of a list exists only for rows of one owner (key_owner), so that
-- a list is merged from parts.

-- ---------------------------------------------------------------------------------------------- rows by id

-- name: get
-- In: ids.
SELECT {columns}, d.data FROM {worker}.worker_activetask a FORCE INDEX (PRIMARY)
LEFT JOIN {worker}.worker_taskdata d ON d.id = a.dataID {extras} WHERE a.id IN (:ids);

-- name: get_archived
-- In: ids.
SELECT {archive_columns}, d.data FROM {worker}.worker_archivetask a FORCE INDEX (PRIMARY)
LEFT JOIN {worker}.worker_taskdata d ON d.id = a.dataID {extras} WHERE a.id IN (:ids);

-- name: history
-- In: ids. Entries of these tasks, oldest first; not those of another task that once had the id.
SELECT e.task_id, e.attempt, e.kind, e.happened, e.owner, e.duration_us, e.message, e.trace
FROM {companion}.attempt e FORCE INDEX (task)
LEFT JOIN {worker}.worker_activetask a ON a.id = e.task_id AND a.dateCreated = e.date_created
LEFT JOIN {worker}.worker_archivetask h ON h.id = e.task_id AND h.dateCreated = e.date_created
WHERE e.task_id IN (:ids) AND (a.id IS NOT NULL OR h.id IS NOT NULL) ORDER BY e.id;

-- ---------------------------------------------------------------------------------------------- lists

-- name: list_active
-- In: parts (list_part, joined by UNION ALL), limit, offset.
SELECT {columns}
FROM (SELECT id FROM (:parts) part ORDER BY priority, id LIMIT :limit OFFSET :offset) chosen
JOIN {worker}.worker_activetask a ON a.id = chosen.id {extras} ORDER BY a.priority, a.id;

-- name: list_part
-- In: index, joined (join_queues or nothing), wanted (where_…, joined by AND), most.
SELECT a.id, a.priority FROM {worker}.worker_activetask a FORCE INDEX (:index) :joined WHERE :wanted
ORDER BY a.priority, a.id LIMIT :most;

-- name: list_archived
-- In: index, joined, wanted, limit.
SELECT {archive_columns}
FROM (
    SELECT a.id FROM {worker}.worker_archivetask a FORCE INDEX (:index) :joined WHERE :wanted ORDER BY a.id DESC LIMIT :limit
) chosen JOIN {worker}.worker_archivetask a ON a.id = chosen.id {extras} ORDER BY a.id DESC;

-- name: join_queues
{queues}

-- name: where_after
-- Written out, because a comparison of pairs is not looked up in an index.
(a.priority > :priority OR (a.priority = :priority AND a.id > :id))

-- name: where_before
a.id < :id

-- name: where_unowned
a.leaseOwner IS NULL

-- name: where_owner
a.leaseOwner = :owner

-- name: where_held
a.leaseOwner IS NOT NULL AND a.leaseOwner NOT IN (:sentinels)

-- name: where_other_sentinel
-- Owners of the form (…) that other programs may write.
a.leaseOwner LIKE '(%)' AND a.leaseOwner NOT IN (:sentinels)

-- name: where_due
-- Rows in state ready that are not `where_unowned`.
a.leaseExpires <= :now AND a.leaseOwner IS NOT NULL

-- name: where_delayed
-- As PHP writes a delay.
a.leaseExpires > :now AND a.leaseOwner IS NULL

-- name: where_parked
a.leaseOwner IN ('gorge-completion-pending', 'gorge-failure-pending')

-- name: where_failed
-- Who counts a failure writes its time too.
a.failureTime IS NOT NULL

-- name: where_states
{state} IN (:states)

-- name: where_classes
-- The second part, because the collation takes 'A ' for 'A'.
a.taskClass IN (:classes) AND CAST(a.taskClass AS BINARY) IN (:classes)

-- name: where_queues
-- In: route (the queue of the class, as an expression), queues.
CAST(COALESCE({queue_column}, :route) AS BINARY) IN (:queues)

-- name: where_object
a.objectPHID = :phid

-- name: where_container
a.containerPHID = :phid

-- name: where_min_failures
a.failureCount >= :bound

-- name: where_max_failures
a.failureCount <= :bound

-- name: where_min_priority
a.priority >= :bound

-- name: where_max_priority
a.priority <= :bound

-- name: where_results
a.result IN (:results)

-- name: where_ended_since
-- Nothing changes an archived row, so this is when it ended, and it has an index; archivedEpoch has none.
a.dateModified >= :since

-- ---------------------------------------------------------------------------------------------- counts

-- name: stats
-- In: now, limit. Out: active, archived, failed, parked, parked and failed, held rows looked at (each counted no
-- further than limit), and how many of the last are leased now.
SELECT counted.*, held.*
FROM (
    SELECT
        (SELECT COUNT(*) FROM (SELECT 1 FROM {worker}.worker_activetask LIMIT :limit) some) AS active,
        (SELECT COUNT(*) FROM (SELECT 1 FROM {worker}.worker_archivetask LIMIT :limit) some) AS archived,
        (SELECT COUNT(*) FROM (
            SELECT 1 FROM {worker}.worker_activetask a FORCE INDEX (key_failuretime) WHERE a.failureTime IS NOT NULL LIMIT :limit
        ) some) AS failed,
        (SELECT COUNT(*) FROM (
            SELECT 1 FROM {worker}.worker_activetask a FORCE INDEX (key_owner)
            WHERE a.leaseOwner IN ('gorge-completion-pending', 'gorge-failure-pending') LIMIT :limit
        ) some) AS parked,
        (SELECT COUNT(*) FROM (
            SELECT 1 FROM {worker}.worker_activetask a FORCE INDEX (key_owner)
            WHERE a.leaseOwner IN ('gorge-completion-pending', 'gorge-failure-pending') AND a.failureTime IS NOT NULL
            LIMIT :limit
        ) some) AS parked_failed
) counted, (
    SELECT COUNT(*) AS looked_at, COUNT(IF(leaseExpires >= :now, 1, NULL)) AS leased FROM (
        SELECT a.leaseExpires FROM {worker}.worker_activetask a FORCE INDEX (key_owner)
        WHERE a.leaseOwner IS NOT NULL AND a.leaseOwner NOT IN (
            '(retry)', '(delay)', '(unknown)', 'gorge-completion-pending', 'gorge-failure-pending'
        ) LIMIT :limit
    ) some
) held;

-- name: table_sizes
-- In: schemas. Out: what the server's statistics say.
SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS, DATA_LENGTH, INDEX_LENGTH FROM information_schema.TABLES
WHERE TABLE_SCHEMA IN (:schemas) AND TABLE_TYPE = 'BASE TABLE';

-- name: backlog
-- In: now, limit. Rows that could be leased now, among the first of those without owner and of those due longest.
SELECT a.taskClass, {queue_column} AS queue, a.priority, COUNT(*), MIN(a.dateCreated)
FROM (
    SELECT id, taskClass, priority, dateCreated FROM (
        SELECT id, taskClass, priority, dateCreated, leaseExpires FROM {worker}.worker_activetask FORCE INDEX (key_owner)
        WHERE leaseOwner IS NULL ORDER BY priority, id LIMIT :limit
    ) unowned WHERE leaseExpires IS NULL
    UNION ALL
    SELECT id, taskClass, priority, dateCreated FROM (
        SELECT id, taskClass, priority, dateCreated, leaseOwner, leaseExpires
        FROM {worker}.worker_activetask FORCE INDEX (leaseExpires) WHERE leaseExpires <= :now ORDER BY leaseExpires LIMIT :limit
    ) timed WHERE {due}
) a {queues} GROUP BY CAST(a.taskClass AS BINARY), queue, a.priority;

-- name: last_id
SELECT counterValue FROM {worker}.lisk_counter WHERE counterName = 'worker_activetask';

-- name: identity
-- MySQL has the first, newer MariaDB the second, older ones neither.
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uuid', 'server_uid');

-- name: record
-- The name of the record, for a dispatch over it.
SELECT value FROM {companion}.meta WHERE name = 'record';

-- name: foreign_owners
-- In: since, limit. Owners that begin with a digit, as those of native taskmasters do, of active rows and of rows that
-- ended lately.
SELECT leaseOwner FROM (
    SELECT DISTINCT leaseOwner FROM {worker}.worker_activetask FORCE INDEX (key_owner)
    WHERE leaseOwner >= '0' AND leaseOwner < ':' LIMIT :limit
) active
UNION
SELECT leaseOwner FROM (
    SELECT leaseOwner FROM {worker}.worker_archivetask FORCE INDEX (key_modified) WHERE dateModified >= :since
    ORDER BY dateModified DESC LIMIT :limit
) ended WHERE leaseOwner >= '0' AND leaseOwner < ':';

-- ---------------------------------------------------------------------------------------------- wake-up

-- fragment: sign_of_some
-- Enough to see that one came.
100

-- name: changed
-- In: now, base. Out: the counter, microseconds of the server's second, and signs of two sets of rows: tasks with ids
-- above base that are ready; and rows that are due, among those with the oldest times and the newest ones (of our
-- workers' leases the newest that could be taken over). Reads a few hundred rows at most, wherever they are.
SELECT
    (SELECT counterValue FROM {worker}.lisk_counter WHERE counterName = 'worker_activetask') AS counter,
    MICROSECOND(NOW(6)) AS microseconds, young.*, due.*
FROM (
    SELECT COUNT(*) AS young_count, BIT_XOR(CRC32(id)) AS young_mark FROM (
        SELECT id, leaseOwner, leaseExpires FROM {worker}.worker_activetask FORCE INDEX (PRIMARY)
        WHERE id > :base ORDER BY id DESC LIMIT {sign_of_some}
    ) newest WHERE {ready}
) young, (
    SELECT COUNT(*) AS due_count, BIT_XOR(CRC32(CONCAT_WS(' ', id, moment))) AS due_mark, MAX(moment) AS due_latest FROM (
        SELECT id, leaseExpires + CASE
            WHEN leaseOwner IS NULL OR leaseOwner = '(delay)' THEN 0
            WHEN leaseOwner LIKE 'qr:%' THEN 1 + {patience}
            ELSE 1
        END AS moment
        FROM (
            (SELECT id, leaseOwner, leaseExpires FROM {worker}.worker_activetask FORCE INDEX (leaseExpires)
            WHERE leaseExpires <= :now ORDER BY leaseExpires LIMIT {sign_of_some})
            UNION
            (SELECT id, leaseOwner, leaseExpires FROM {worker}.worker_activetask FORCE INDEX (leaseExpires)
            WHERE leaseExpires <= :now ORDER BY leaseExpires DESC LIMIT {sign_of_some})
            UNION
            (SELECT id, leaseOwner, leaseExpires FROM {worker}.worker_activetask FORCE INDEX (leaseExpires)
            WHERE leaseExpires < :now - {patience} ORDER BY leaseExpires DESC LIMIT {sign_of_some})
        ) some
        WHERE leaseOwner IS NULL OR leaseOwner NOT IN ('gorge-completion-pending', 'gorge-failure-pending')
    ) timed WHERE moment <= :now
) due;

-- ---------------------------------------------------------------------------------------------- sweep

-- name: lock_over
-- In: now, retention, limit. Archived rows whose retention is over and that nobody else has locked; not those that are
-- active too. Their end is what changed them last. A subquery of one value, because NOT EXISTS is answered by reading
-- the whole other table.
SELECT id, dataID FROM {worker}.worker_archivetask a FORCE INDEX (key_modified)
WHERE dateModified <= CAST(:now AS SIGNED) - :retention AND (SELECT b.id FROM {worker}.worker_activetask b WHERE b.id = a.id) IS NULL
ORDER BY dateModified, id LIMIT :limit FOR UPDATE {skip_locked};

-- name: more_over
-- In: now, retention.
SELECT 1 FROM {worker}.worker_archivetask a FORCE INDEX (key_modified)
WHERE dateModified <= CAST(:now AS SIGNED) - :retention AND (SELECT b.id FROM {worker}.worker_activetask b WHERE b.id = a.id) IS NULL LIMIT 1;

-- name: lock_revived
-- In: ids. Sees, or meets the lock of, a row that `bin/worker retry` is bringing back.
SELECT id FROM {worker}.worker_activetask FORCE INDEX (PRIMARY) WHERE id IN (:ids) FOR UPDATE {nowait};

-- name: delete_over
-- In: ids that this transaction has locked, count.
DELETE FROM {worker}.worker_archivetask WHERE id IN (:ids) ORDER BY id LIMIT :count;

-- name: delete_payloads
-- In: ids of payloads, count.
DELETE FROM {worker}.worker_taskdata WHERE id IN (:ids) ORDER BY id LIMIT :count;

-- name: keys_of
-- In: ids. Idempotency keys of these tasks.
SELECT idempotency_key FROM {companion}.task_extra FORCE INDEX (PRIMARY)
WHERE task_id IN (:ids) AND idempotency_key IS NOT NULL;

-- name: delete_keys
-- In: keys, ids, count.
DELETE FROM {companion}.idempotency WHERE idempotency_key IN (:keys) AND task_id IN (:ids)
ORDER BY idempotency_key LIMIT :count;

-- name: delete_extras
-- In: ids, count.
DELETE FROM {companion}.task_extra WHERE task_id IN (:ids) ORDER BY task_id LIMIT :count;

-- name: delete_attempts
-- In: ids of tasks. LIMIT, so that a small table is not scanned.
DELETE FROM {companion}.attempt WHERE task_id IN (:ids) ORDER BY task_id, id LIMIT 1000000;

-- name: some_extras
-- In: after, limit. The last row of a stretch of the table; NULL: there is none.
SELECT MAX(task_id) FROM (
    SELECT task_id FROM {companion}.task_extra WHERE task_id > :after ORDER BY task_id LIMIT :limit
) stretch;

-- name: orphaned_extras
-- In: after, limit. Those of the stretch whose task is gone, or is another one that was given the same id.
SELECT x.task_id, x.date_created FROM (
    SELECT task_id, date_created FROM {companion}.task_extra WHERE task_id > :after ORDER BY task_id LIMIT :limit
) x
LEFT JOIN {worker}.worker_activetask a ON a.id = x.task_id AND a.dateCreated = x.date_created
LEFT JOIN {worker}.worker_archivetask h ON h.id = x.task_id AND h.dateCreated = x.date_created
WHERE a.id IS NULL AND h.id IS NULL;

-- name: delete_orphaned_extras
-- In: ids, rows (task_id, date_created), count.
DELETE FROM {companion}.task_extra WHERE task_id IN (:ids) AND (task_id, date_created) IN (:rows)
ORDER BY task_id LIMIT :count;

-- name: some_attempts
SELECT MAX(id) FROM (SELECT id FROM {companion}.attempt WHERE id > :after ORDER BY id LIMIT :limit) stretch;

-- name: orphaned_attempts
SELECT x.id FROM (
    SELECT id, task_id, date_created FROM {companion}.attempt WHERE id > :after ORDER BY id LIMIT :limit
) x
LEFT JOIN {worker}.worker_activetask a ON a.id = x.task_id AND a.dateCreated = x.date_created
LEFT JOIN {worker}.worker_archivetask h ON h.id = x.task_id AND h.dateCreated = x.date_created
WHERE a.id IS NULL AND h.id IS NULL;

-- name: delete_orphaned_attempts
-- In: ids of attempts, count.
DELETE FROM {companion}.attempt WHERE id IN (:ids) ORDER BY id LIMIT :count;

-- name: some_keys
SELECT MAX(idempotency_key) FROM (
    SELECT idempotency_key FROM {companion}.idempotency WHERE idempotency_key > :after ORDER BY idempotency_key LIMIT :limit
) stretch;

-- name: orphaned_keys
SELECT x.idempotency_key, x.task_id FROM (
    SELECT idempotency_key, task_id, date_created FROM {companion}.idempotency
    WHERE idempotency_key > :after ORDER BY idempotency_key LIMIT :limit
) x
LEFT JOIN {worker}.worker_activetask a ON a.id = x.task_id AND a.dateCreated = x.date_created
LEFT JOIN {worker}.worker_archivetask h ON h.id = x.task_id AND h.dateCreated = x.date_created
WHERE a.id IS NULL AND h.id IS NULL;

-- ---------------------------------------------------------------------------------------------- dispatch

-- fragment: dispatched
-- As candidate_columns, then the expiry and whether the row is one of phase 1; known to mysql_dispatchable.py.
{candidate_columns}, a.leaseExpires, a.fresh

-- name: dispatch_ready
-- In: after_priority, after_id, limit. Rows of phase 1 by priority and id.
SELECT {dispatched} FROM (
    SELECT id, priority, taskClass, leaseExpires, dateCreated, 1 AS fresh
    FROM {worker}.worker_activetask FORCE INDEX (key_owner)
    WHERE {ready} AND (priority > :after_priority OR (priority = :after_priority AND id > :after_id))
    ORDER BY priority, id LIMIT :limit
) a {queues} ORDER BY a.priority, a.id;

-- name: dispatch_young
-- In: above, limit. Rows of phase 1 by id.
SELECT {dispatched} FROM (
    SELECT id, priority, taskClass, leaseExpires, dateCreated, 1 AS fresh
    FROM {worker}.worker_activetask FORCE INDEX (PRIMARY) WHERE id > :above AND {ready} ORDER BY id LIMIT :limit
) a {queues} ORDER BY a.id;

-- name: dispatch_due
-- In: after_expires, after_id, limit, now. Rows of phase 2, those due longest first.
SELECT {dispatched} FROM (
    SELECT id, priority, taskClass, leaseExpires, dateCreated, 0 AS fresh
    FROM {worker}.worker_activetask FORCE INDEX (leaseExpires)
    WHERE leaseExpires >= :after_expires AND (leaseExpires > :after_expires OR id > :after_id) AND {due}
    ORDER BY leaseExpires, id LIMIT :limit
) a {queues} ORDER BY a.leaseExpires, a.id;

-- name: dispatch_named
-- In: ids, limit, now. Those of them that are in either phase.
SELECT {dispatched} FROM (
    SELECT id, priority, taskClass, leaseExpires, dateCreated, ({ready}) AS fresh
    FROM {worker}.worker_activetask FORCE INDEX (PRIMARY) WHERE id IN (:ids) AND (({ready}) OR ({due})) LIMIT :limit
) a {queues} ORDER BY a.id;
