-- Statements that tell a dispatch which tasks a lease could take now. Loaded after sqlite.sql, whose fragments they use.

-- fragment: dispatched
-- The order is known to sqlite_dispatchable.py.
task.id, lane.task_class, lane.queue, task.priority, task.id, task.expires, task.owner IS NULL AND task.expires IS NULL

-- fragment: allowed
(:lanes IS NULL OR task.lane IN (SELECT value FROM json_each(:lanes)))

-- name: dispatch_gates
-- Out: the newest lane, whether anything is paused, and the last id given out.
SELECT (SELECT max(id) FROM lane), EXISTS (SELECT 1 FROM pause), (SELECT last_id FROM counter);

-- name: dispatch_ready
-- In: after_priority, after_id, lanes, limit. Rows of phase 1 by priority and id.
SELECT {dispatched} FROM task INDEXED BY active CROSS JOIN lane ON lane.id = task.lane
WHERE task.result IS NULL AND (task.priority, task.id) > (:after_priority, :after_id)
    AND task.owner IS NULL AND task.expires IS NULL AND {allowed}
ORDER BY task.priority, task.id LIMIT :limit;

-- name: dispatch_young
-- In: above, lanes, limit. Rows of phase 1 by id.
SELECT {dispatched} FROM task NOT INDEXED CROSS JOIN lane ON lane.id = task.lane
WHERE task.id > :above AND {ready} AND {allowed}
ORDER BY task.id LIMIT :limit;

-- name: dispatch_due
-- In: after_expires, after_id, lanes, limit, now, patience. Rows of phase 2, those due longest first.
{buckets}, due (bucket, due_by) AS (SELECT bucket, :now - {grace} FROM found WHERE bucket IS NOT NULL)
SELECT {dispatched}
FROM (
    SELECT task.id AS chosen FROM due CROSS JOIN task INDEXED BY timed ON task.bucket = due.bucket
    WHERE {timed} AND task.expires <= due.due_by AND task.expires >= :after_expires
        AND (task.expires, task.id) > (:after_expires, :after_id) AND {allowed}
    ORDER BY task.expires, task.id LIMIT :limit
) CROSS JOIN task ON task.id = chosen CROSS JOIN lane ON lane.id = task.lane
ORDER BY task.expires, task.id;

-- name: dispatch_named
-- In: ids (JSON), lanes, limit, now, patience. Those of them that are in either phase.
SELECT {dispatched} FROM task CROSS JOIN lane ON lane.id = task.lane
WHERE task.id IN (SELECT value FROM json_each(:ids)) AND task.result IS NULL AND {allowed} AND (
    (task.owner IS NULL AND task.expires IS NULL) OR (task.bucket IS NOT NULL AND task.expires <= :now - {grace})
)
ORDER BY task.id LIMIT :limit;
