"""Phorge's `bin/worker`: the operator's commands as plain SQL, after spec section 8."""

import time

import pymysql
from pymysql.constants import ER

from tests.phorge_php import Php, PhpTask


def _is_taken(error: pymysql.Error) -> bool:
    """Whether it is error 1062, which a native process gets where somebody else has archived its task."""
    return bool(error.args[0] == ER.DUP_ENTRY)


class _GoneError(Exception):
    """The archived row was gone: nothing is brought back."""


class BinWorker(Php):
    """The operator's commands. Rows as they are at this moment; leases are ignored, and holders are not told."""

    def cancel(self, task_id: int) -> bool:
        """Archive an active task as cancelled; False where another has been quicker."""
        task = self._load(task_id)
        if task is None:
            return False
        try:
            with self.transaction():
                self.write("DELETE FROM worker_activetask WHERE id = %s", (task_id,))
                self.insert_archived(task, None, int(time.time()), result=2)
        except pymysql.IntegrityError as error:
            if not _is_taken(error):
                raise
            return False
        return True

    def free(self, task_id: int) -> int:
        """Take a task from its owner."""
        return self.write(
            "UPDATE worker_activetask SET leaseOwner = NULL, leaseExpires = UNIX_TIMESTAMP()"
            " WHERE id = %s AND leaseOwner IS NOT NULL",
            (task_id,),
        )

    def set_priority(self, task_id: int, priority: int) -> int:
        """Move a task in the queue."""
        return self.write("UPDATE worker_activetask SET priority = %s WHERE id = %s", (priority, task_id))

    def delay(self, task_id: int, until: int) -> int:
        """Delay a task without an owner, which native processes do not heed."""
        return self.write(
            "UPDATE worker_activetask SET leaseExpires = %s WHERE id = %s AND leaseOwner IS NULL", (until, task_id)
        )

    def retry(self, task_id: int, *, repeat: bool = False) -> bool:
        """Bring an archived task back under its id: the active row first, then the archived one."""
        found = self.query(
            "SELECT id, taskClass, dataID, priority, objectPHID, containerPHID, dateCreated, result"
            " FROM worker_archivetask WHERE id = %s",
            (task_id,),
        )
        if not found or (found[0][7] == 0 and not repeat):
            return False
        _, task_class, data_id, priority, object_phid, container_phid, created, _ = found[0]
        try:
            with self.transaction():
                self.write(
                    "INSERT INTO worker_activetask (id, taskClass, leaseOwner, leaseExpires, failureCount, dataID,"
                    " failureTime, priority, objectPHID, containerPHID, dateCreated, dateModified)"
                    " VALUES (%s, %s, NULL, 0, 0, %s, NULL, %s, %s, %s, %s, UNIX_TIMESTAMP())",
                    (task_id, task_class, data_id, priority, object_phid, container_phid, created),
                )
                self._delete_archived(task_id)
        except pymysql.IntegrityError as error:
            if not _is_taken(error):
                raise
            return False
        except _GoneError:
            return False
        return True

    def _delete_archived(self, task_id: int) -> None:
        if not self.write("DELETE FROM worker_archivetask WHERE id = %s", (task_id,)):
            raise _GoneError

    def _load(self, task_id: int) -> PhpTask | None:
        found = self.query(
            "SELECT id, taskClass, COALESCE(leaseOwner, ''), COALESCE(leaseExpires, 0), failureCount, dataID, priority,"
            " objectPHID, containerPHID, dateCreated, NULL FROM worker_activetask WHERE id = %s",
            (task_id,),
        )
        return PhpTask(*found[0]) if found else None
