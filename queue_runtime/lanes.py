"""Which task classes are leased together, and when asking for them is worth a call."""

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from queue_runtime.handler_spec import ANY_CLASS, Gate, HandlerSpec
from queue_runtime.registry import Registry

SAFETY_SECONDS = 1.0
"""A lane that had nothing is asked again after this time even when nothing rang."""

SHORTEST_REST = 0.005
LONGEST_REST = 0.1
"""Rests after rings that brought nothing (work that nobody here may take, or that others were quicker at)."""

FREE_RINGS = 3
"""So many such rings in a row cost no rest: our own outcomes ring too on some stores."""

DUE_FIRST_EVERY = 4

LEARN_SECONDS = 2.0
"""How often a lane with patterns looks for classes that it has not met."""


class Lane:
    """Classes leased by one call. A handler with a cap below the slots has a lane of its own.

    The lane remembers that it had nothing more to give: then only a ring, or the safety time, makes the next
    call worth it.
    """

    def __init__(
        self,
        classes: Collection[str] | None,
        without_classes: Collection[str] = (),
        *,
        capped: HandlerSpec | None = None,
        patterns: Collection[str] = (),
    ) -> None:
        self._classes = classes
        self._without_classes = without_classes
        self.capped = capped
        self._patterns = patterns
        self._learn_at = 0.0
        self._calls = 0
        self._empty = False
        self._seen = 0
        self._look_at = 0.0
        self._fruitless = 0
        self._rest_until = 0.0

    @property
    def classes(self) -> Collection[str] | None:
        """What may be leased now; None: every class but `without_classes`."""
        held = self._held
        return self._classes if self._classes is None or not held else frozenset(self._classes).difference(held)

    @property
    def without_classes(self) -> Collection[str]:
        """What may not."""
        held = self._held
        return frozenset(self._without_classes).union(held) if held and self._classes is None else self._without_classes

    @property
    def _held(self) -> Collection[str]:
        gate = None if self.capped is None else self.capped.gate
        return () if gate is None else gate.held

    def wants_names(self, now: float) -> bool:
        """Whether it is time to look which classes wait: stores are asked by name, and this lane has patterns."""
        return bool(self._patterns) and now >= self._learn_at

    def learn(self, classes: Iterable[str], now: float) -> None:
        """These classes wait; those that fit a pattern are leased from now on."""
        self._learn_at = now + LEARN_SECONDS
        found = {one for one in classes if one not in self._without_classes and _fits(one, self._patterns)}
        self._classes = found.union(self._classes or ())

    def next_is_due_first(self) -> bool:
        """Count a call; whether it shall take what came due before what is new, so that neither starves."""
        self._calls += 1
        return self._calls % DUE_FIRST_EVERY == 0

    @property
    def shut(self) -> bool:
        """Whether nothing may be leased just now."""
        gate = None if self.capped is None else self.capped.gate
        return gate is not None and not gate.open

    def look_again(self) -> None:
        """There is something after all: the next call is worth making at once."""
        self._empty = False

    def wait(self, rings: int, now: float) -> float:
        """Seconds until the next call is worth making."""
        if not self._empty:
            return 0.0
        return max((self._look_at if rings == self._seen else self._rest_until) - now, 0.0)

    def answered(self, count: int, *, short: bool, rings: int, now: float) -> None:
        """A call brought `count` tasks; `short`: there were no more. `rings` as read before the call."""
        rung = self._empty and rings != self._seen
        self._fruitless = 0 if count or not rung else self._fruitless + 1
        rest = 0.0
        if self._fruitless > FREE_RINGS:
            rest = min(SHORTEST_REST * 2 ** min(self._fruitless - FREE_RINGS - 1, 10), LONGEST_REST)
        self._empty = short
        self._seen = rings
        self._look_at = now + SAFETY_SECONDS
        self._rest_until = now + rest


def supported(registry: Registry, classes: frozenset[str] | None) -> list[str]:
    """The classes that these handlers lease, narrowed to `classes`; `*` stands for all others, patterns for those of a
    fallback with a gate."""
    fallback = registry.fallback_spec
    if classes is not None:
        return sorted(name for name in classes if registry.find(name) is not None)
    if fallback is None:
        return sorted(registry.classes)
    others = [ANY_CLASS] if fallback.gate is None else sorted(set(fallback.gate.patterns) - registry.classes)
    return [*sorted(registry.classes), *others]


def lanes_of(registry: Registry, classes: frozenset[str] | None, *, slots: int) -> list[Lane]:
    """The lanes for these handlers, narrowed to `classes`: never lease what you cannot run."""
    specs = [spec for spec in registry.specs if spec is not registry.fallback_spec]
    if classes is not None:
        specs = [spec for spec in specs if spec.task_class in classes]
    own_lane = [spec for spec in specs if _is_capped(spec, slots)]
    together = frozenset(spec.task_class for spec in specs if not _is_capped(spec, slots))
    lanes = [Lane(frozenset({spec.task_class}), capped=spec) for spec in own_lane]

    fallback = registry.fallback_spec
    if fallback is None:
        return [Lane(together), *lanes] if together else lanes
    if fallback.gate is not None:
        lanes.append(_gated(fallback, fallback.gate, registry.classes, classes))
        return [Lane(together), *lanes] if together else lanes
    if _is_capped(fallback, slots):
        others = Lane(
            None if classes is None else classes - registry.classes,
            registry.classes if classes is None else (),
            capped=fallback,
        )
        lanes.append(others)
        return [Lane(together), *lanes] if together else lanes
    apart = frozenset(spec.task_class for spec in own_lane)
    return [Lane(None, apart) if classes is None else Lane(classes - apart), *lanes]


def _gated(fallback: HandlerSpec, gate: Gate, native: frozenset[str], classes: frozenset[str] | None) -> Lane:
    """The lane of a fallback with a gate, which takes the classes that it lets through and has no native handler."""
    if classes is not None:
        return Lane(frozenset(filter(fallback.accepts, classes - native)), capped=fallback)
    if ANY_CLASS in gate.patterns:
        return Lane(None, native, capped=fallback)
    names = frozenset(one for one in gate.patterns if not _is_pattern(one))
    patterns = [one for one in gate.patterns if _is_pattern(one)]
    return Lane(names - native, native if patterns else (), capped=fallback, patterns=patterns)


def _is_pattern(text: str) -> bool:
    return any(char in text for char in "*?[")


def _fits(task_class: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(task_class, pattern) for pattern in patterns)


def _is_capped(spec: HandlerSpec, slots: int) -> bool:
    return spec.concurrency is not None and spec.concurrency < slots
