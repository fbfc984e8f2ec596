-- The queue's part of Phorge's database `{namespace}_worker`, as `bin/storage upgrade` leaves it.

CREATE TABLE worker_activetask (
    id INT UNSIGNED NOT NULL,
    taskClass VARCHAR(64) NOT NULL,
    leaseOwner VARCHAR(64),
    leaseExpires INT UNSIGNED,
    failureCount INT UNSIGNED NOT NULL,
    dataID INT UNSIGNED NOT NULL,
    failureTime INT UNSIGNED,
    priority INT UNSIGNED NOT NULL,
    objectPHID VARBINARY(64),
    dateCreated INT UNSIGNED NOT NULL,
    dateModified INT UNSIGNED NOT NULL,
    containerPHID VARBINARY(64),
    PRIMARY KEY (id),
    KEY leaseExpires (leaseExpires),
    KEY key_failuretime (failureTime),
    KEY taskClass (taskClass),
    KEY key_owner (leaseOwner, priority, id),
    KEY key_object (objectPHID),
    KEY key_container (containerPHID)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE worker_archivetask (
    id INT UNSIGNED NOT NULL,
    taskClass VARCHAR(64) NOT NULL,
    leaseOwner VARCHAR(64),
    leaseExpires INT UNSIGNED,
    failureCount INT UNSIGNED NOT NULL,
    dataID INT UNSIGNED NOT NULL,
    result INT UNSIGNED NOT NULL,
    duration BIGINT UNSIGNED NOT NULL,
    priority INT UNSIGNED NOT NULL,
    objectPHID VARBINARY(64),
    dateCreated INT UNSIGNED NOT NULL,
    dateModified INT UNSIGNED NOT NULL,
    containerPHID VARBINARY(64),
    archivedEpoch INT UNSIGNED,
    PRIMARY KEY (id),
    KEY dateCreated (dateCreated),
    KEY key_modified (dateModified),
    KEY key_object (objectPHID),
    KEY key_container (containerPHID)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE worker_taskdata (
    id INT UNSIGNED NOT NULL AUTO_INCREMENT,
    data LONGTEXT NOT NULL,
    PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE lisk_counter (
    counterName VARCHAR(32) NOT NULL,
    counterValue BIGINT UNSIGNED NOT NULL,
    PRIMARY KEY (counterName)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
