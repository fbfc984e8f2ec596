-- Statements of `queue-runtime doctor --store` on SQLite. They only read.

-- name: identity
-- Out: application id, schema version, number of tables.
SELECT
    (SELECT application_id FROM pragma_application_id),
    (SELECT user_version FROM pragma_user_version),
    (SELECT count(*) FROM sqlite_master);

-- name: journal
PRAGMA journal_mode;

-- name: integrity
-- Out: `ok`, or the first faults, one a row.
PRAGMA quick_check(5);

-- name: kept_counts
-- Out: active and archived rows as the counter has them.
SELECT active, archived FROM counter;

-- name: real_counts
-- Out: active and archived rows, and the largest id against the last one handed out.
SELECT count(*) - count(result), count(result), coalesce(max(id), 0), (SELECT last_id FROM counter) FROM task;

-- name: orphans
-- Out: large payloads of no task.
SELECT count(*) FROM payload WHERE NOT EXISTS (SELECT 1 FROM task WHERE task.id = payload.task_id);
