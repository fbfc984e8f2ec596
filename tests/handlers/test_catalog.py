"""The catalog registers what can run here, and nothing else."""

from pathlib import Path

from handlers import catalog


def test_without_a_policy_file_the_feed_class_is_left_to_the_fallback() -> None:
    assert catalog.native().classes == {"PhabricatorTestWorker"}


def test_with_a_policy_file_both_classes_are_native(tmp_path: Path) -> None:
    registry = catalog.native(feed_policy_file=tmp_path / "policy.json")
    assert registry.classes == {"PhabricatorTestWorker", "FeedPublisherHTTPWorker"}


def test_the_feed_class_waits_a_minute_more_after_each_failure(tmp_path: Path) -> None:
    spec = catalog.native(feed_policy_file=tmp_path / "policy.json").find("FeedPublisherHTTPWorker")
    assert spec is not None
    assert callable(spec.retry)
    assert [spec.retry(failures) for failures in (0, 1, 2, 10)] == [60, 60, 120, 600]


def test_handlers_get_the_payload_as_text() -> None:
    spec = catalog.native().find("PhabricatorTestWorker")
    assert spec is not None
    assert spec.is_async
    assert spec.read('{"duration":1}') == '{"duration":1}'
