-- What the doctor asks a MySQL or MariaDB server. Nothing here changes anything.

-- name: variables
-- Out: name and value of those that the server has.
SHOW VARIABLES WHERE Variable_name IN (
    'version', 'tx_isolation', 'transaction_isolation', 'log_bin', 'binlog_format', 'max_allowed_packet', 'wait_timeout',
    'innodb_autoinc_lock_mode', 'auto_increment_increment', 'read_only', 'wsrep_on'
);

-- name: server_wait
SELECT @@GLOBAL.wait_timeout;

-- name: clock
SELECT UNIX_TIMESTAMP(NOW(6));

-- name: columns
-- In: schema.
SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLLATION_NAME, COLUMN_DEFAULT, EXTRA
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = :schema;

-- name: keys
-- In: schema.
SELECT TABLE_NAME, INDEX_NAME, COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = :schema
ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX;

-- name: engines
-- In: schema.
SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = :schema;

-- name: try_select
SELECT 1 FROM {table} WHERE FALSE;

-- name: try_insert
INSERT INTO {table} SELECT * FROM {table} WHERE FALSE;

-- name: try_update
UPDATE {table} SET {column} = {column} WHERE FALSE;

-- name: try_delete
DELETE FROM {table} WHERE FALSE;

-- name: daemons
-- In: seconds. Out: class and host of Phorge's daemons that were seen in that time. They report every two minutes.
SELECT DISTINCT daemon, host FROM {table}
WHERE status NOT IN ('exit', 'dead') AND dateModified > UNIX_TIMESTAMP() - :seconds ORDER BY daemon, host LIMIT 1000;

-- name: grants
SHOW GRANTS;

-- name: account
SHOW CREATE USER CURRENT_USER();

-- name: cipher
SHOW SESSION STATUS LIKE 'Ssl_cipher';
