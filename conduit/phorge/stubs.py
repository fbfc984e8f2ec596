"""Writes PHP classes that stand in for task classes without PHP code, so that Phorge's console can show such tasks."""

import re
from collections.abc import Sequence

from conduit.phorge.checkout import classes_of, shipped
from conduit.phorge.php_names import BUILT_IN, RESERVED

YIELD_SECONDS = 60

_HEAD = """<?php

/**
 * Written by `queue-runtime phorge stubs`; the next call replaces it.
 *
 * The work of these task classes is done elsewhere. The classes are here
 * because the page of a task builds its class; and should one of Phorge's own
 * taskmasters take such a task, it gives it back without counting a failure.
 */
"""

_CLASS = """
if (!class_exists('{name}', false) &&
    !interface_exists('{name}', false) &&
    !trait_exists('{name}', false)) {{
  final class {name} extends PhabricatorWorker {{
    protected function doWork() {{
      throw new PhabricatorWorkerYieldException({seconds});
    }}
  }}
}}
"""


def is_class_name(text: str) -> bool:
    """Whether PHP takes it as a class name, and the queue as a task class."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", text, re.ASCII) is not None and text.lower() not in RESERVED


def is_taken(name: str) -> bool:
    """Whether PHP or the extension has something of this name, on whichever machine."""
    return name.lower() in BUILT_IN | {one.lower() for one in classes_of(shipped())}


def stub_file(classes: Sequence[str]) -> bytes:
    """A file with a stub for each class."""
    parts = [_CLASS.format(name=name, seconds=YIELD_SECONDS) for name in sorted(set(classes))]
    return (_HEAD + "".join(parts)).encode()
