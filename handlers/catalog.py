"""Registers the task classes of Phorge that run without PHP."""

from pathlib import Path

from handlers import feed_publisher, test_worker
from handlers.feed_publisher import FeedPublisher
from queue_runtime.registry import Registry

FEED_CONCURRENCY = 8
"""A hook that hangs must not fill every slot."""


def native(*, feed_policy_file: Path | None = None) -> Registry:
    """The native classes.

    Without a policy file the feed class is left out, so that this process leases it only for a fallback.
    Forms of a native class that are Phorge's alone go to the fallback which this registry has by then: it may
    come later, by `merge`.
    """
    registry = Registry()
    registry.task(test_worker.TASK_CLASS)(test_worker.run_test_worker)
    if feed_policy_file is not None:
        registry.task(
            feed_publisher.TASK_CLASS,
            retry=feed_publisher.wait_before_retry,
            concurrency=FEED_CONCURRENCY,
        )(FeedPublisher(feed_policy_file, fallback=lambda: registry.fallback_spec))
    return registry
