"""The spelling of tasks on the wire, and what makes two events the same."""

from hashlib import sha256

import pytest

from queue_runtime.task import NewTask, Task
from queue_runtime.wire import event_digest, task_json

GO_JSON = [
    (NewTask(task_class="A"), '{"taskClass":"A","data":""}'),
    (NewTask(task_class="A", data="[]", priority=0), '{"taskClass":"A","data":"[]","priority":0}'),
    (
        NewTask(task_class="A", object_phid="PHID-1", container_phid="PHID-2", delay_until=7),
        '{"taskClass":"A","data":"","objectPHID":"PHID-1","containerPHID":"PHID-2","delayUntil":7}',
    ),
    (NewTask(task_class="A", data="<a>&\u2028\u2029"), r'{"taskClass":"A","data":"\u003ca\u003e\u0026\u2028\u2029"}'),
    (NewTask(task_class="A", data='"\\\n\t\x01\x7f'), '{"taskClass":"A","data":"\\"\\\\\\n\\t\\u0001\x7f"}'),
    (NewTask(task_class="A", data="\u00e9\U0001f600"), '{"taskClass":"A","data":"\u00e9\U0001f600"}'),
    (
        NewTask(task_class="A", queue="q", idempotency_key="k", max_attempts=2),
        '{"taskClass":"A","data":"","queue":"q","idempotencyKey":"k","maxAttempts":2}',
    ),
]


@pytest.mark.parametrize(("task", "text"), GO_JSON)
def test_the_digest_of_an_event_is_that_of_the_go_service(task: NewTask, text: str) -> None:
    assert event_digest(task) == sha256(text.encode()).hexdigest()


def test_a_delay_that_was_sent_as_nothing_counts_in_the_digest() -> None:
    text = '{"taskClass":"A","data":"","delayUntil":0}'
    assert event_digest(NewTask(task_class="A"), sent_delay=0) == sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("owner", ["(retry)", "(delay)", "(unknown)", "", None])
def test_owners_that_the_go_service_does_not_know_are_absent(owner: str | None) -> None:
    assert "leaseOwner" not in task_json(_task(owner))


@pytest.mark.parametrize("owner", ["(yield)", "host:1:2:3", "qr:1:2:3@host", "gorge-completion-pending"])
def test_other_owners_are_shown_as_they_are(owner: str) -> None:
    assert task_json(_task(owner))["leaseOwner"] == owner


def _task(owner: str | None) -> Task:
    return Task(
        id=1, task_class="A", data_id=1, priority=1, date_created=1, date_modified=1, lease_owner=owner, lease_expires=9
    )
