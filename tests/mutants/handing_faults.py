"""Faults in the handing over of tasks: in the scripts of the Redis store, in its Python, and in the lease loop."""

from tests.mutants.mutant import Mutant

_STORE, _LOOP = "stores/test_redis_handing.py::test_", "runtime/test_handing.py::test_"


def fault(name: str, path: str, old: str, new: str, *caught_by: str) -> Mutant:
    """A fault, and the tests that see it."""
    return Mutant(name, "handing", path, ((old, new),), caught_by)


_HAND, _LEASE = "stores/lua/fragments/hand.lua", "stores/lua/lease.lua"

HANDING_FAULTS: tuple[Mutant, ...] = (
    fault(
        "a handed task passes what is ready",
        _HAND,
        "call('EXISTS', PAUSES, heads_key('R')) > 0",
        "call('EXISTS', PAUSES) > 0",
        f"{_STORE}a_task_passes_none_that_is_ready",
    ),
    fault(
        "a pause holds nothing back that is handed",
        _HAND,
        "call('EXISTS', PAUSES, heads_key('R')) > 0",
        "call('EXISTS', heads_key('R')) > 0",
        f"{_STORE}a_pause_is_obeyed_and_lifted",
    ),
    fault(
        "a handed task passes what is due",
        _HAND,
        "return not is_due(order.patience) and order or nil, found[at]",
        "return order, found[at]",
        f"{_STORE}a_task_passes_none_that_is_due",
    ),
    fault(
        "what a dead worker held does not count as due",
        _HAND,
        "waiting and { 'D', 'B', 'H', 'W' } or { 'W' }",
        "waiting and { 'D', 'B', 'H' } or {}",
        f"{_STORE}a_task_passes_none_that_is_due",
    ),
    fault(
        "an order outlives its time",
        "stores/lua/fragments/orders.lua",
        "return order.until_ < now or",
        "return",
        f"{_STORE}an_order_ends_by_itself",
    ),
    fault(
        "a worker that is gone is handed a task",
        _HAND,
        "if has_listener(order.channel) then",
        "if true then",
        f"{_STORE}a_worker_that_is_gone_gets_nothing",
    ),
    fault(
        "an order gets classes that it did not ask for",
        "stores/lua/fragments/orders.lua",
        "(not order.classes or is_among(order.classes, class))",
        "true",
        f"{_STORE}an_order_gets_only_what_it_asked_for",
    ),
    fault(
        "an order is filled twice",
        _HAND,
        "  over[#over + 1] = owner\n",
        "",
        f"{_STORE}an_order_is_filled_once",
        f"{_STORE}two_that_wait_get_one_task_each",
    ),
    fault(
        "a lost message loses the task",
        _HAND,
        "call('HSET', HANDED, owner, id .. format('%010d', expires))",
        "",
        f"{_STORE}a_lost_message_costs_one_more_call",
    ),
    fault(
        "a lane with nothing but handed rows is not known",
        _HAND,
        "call('ZADD', LANES, 0, lane_member(queue, class))",
        "",
        f"{_STORE}a_task_that_comes_alone_is_held_by_the_worker_that_waits",
        f"{_STORE}a_dead_worker_s_handed_task_comes_back_like_any_other",
        f"{_STORE}a_handed_lane_is_whole_while_it_is_held",
    ),
    fault(
        "a row is returned that its order does not hold any more",
        _LEASE,
        "row.active and row.owner == recalled[at] and row.expires",
        "row.active and row.expires",
        f"{_STORE}what_is_not_held_any_more_is_not_returned",
    ),
    fault(
        "an order is not withdrawn",
        _LEASE,
        "try('HDEL', ORDERS, unpack(recalled))",
        "",
        f"{_STORE}a_withdrawn_order_is_not_filled",
    ),
    fault(
        "orders are written to the log of the server",
        "stores/lua/fragments/orders.lua",
        "pcall(redis.set_repl, redis.REPL_NONE)",
        "",
        f"{_STORE}orders_go_to_no_log_of_the_server",
    ),
    fault(
        "a message for an order that has ended is believed",
        "stores/redis_orders.py",
        "self._owners.pop(token)",
        "self._owners.get(token)",
        f"{_STORE}noise_in_the_channel_is_no_task",
        f"{_STORE}a_message_during_the_next_call_is_no_second_task",
    ),
    fault(
        "the deadline of a handed task is counted from the call that found it",
        "queue_runtime/lease_loop.py",
        "asked = asked_at[owner]",
        "asked = max(asked_at.values())",
        f"{_LOOP}the_deadline_of_a_run_is_never_later_than_its_lease",
    ),
    fault(
        "orders outnumber the free slots",
        "queue_runtime/lease_loop.py",
        "self._runner.free - self._orders.beside(lane)) > 0",
        "self._runner.free) > 0",
        f"{_LOOP}orders_never_outnumber_the_free_slots",
    ),
    fault(
        "a stop leaves the order",
        "queue_runtime/lease_loop.py",
        "            group.start_soon(self._withdraw_all)\n",
        "",
        f"{_LOOP}a_stop_withdraws_the_order",
        f"{_LOOP}what_was_handed_and_not_heard_of_is_given_back_by_the_stop",
    ),
    fault(
        "what a withdrawn order was handed is forgotten",
        "queue_runtime/lease_loop.py",
        "            self._orders.end(lanes)\n            self._give_back(tasks)\n",
        "            self._orders.end(lanes)\n",
        f"{_LOOP}what_was_handed_and_not_heard_of_is_given_back_by_the_stop",
    ),
    fault(
        "after a handed task the worker waits for the bell",
        "queue_runtime/lease_loop.py",
        "< MAX_LEASE_BYTES // 2 and not handed",
        "< MAX_LEASE_BYTES // 2",
        f"{_LOOP}work_of_another_process_starts_without_a_round_trip",
    ),
    fault(
        "the next call goes out before the run has begun",
        "queue_runtime/lease_loop.py",
        "            await asyncio.sleep(0)  # the run",
        "            pass  # the run",
        f"{_LOOP}work_of_another_process_starts_without_a_round_trip",
    ),
    fault(
        "a lease goes out after the worker's end",
        "queue_runtime/lease_loop.py",
        "                return 0  # the end of the worker",
        "                pass  # the end of the worker",
        f"{_LOOP}no_lease_goes_out_after_the_end",
    ),
)
