"""Faults in the dispatch by streams: in its scripts, and in the Python around them."""

from tests.mutants.mutant import Mutant


def streams(name: str, module: str, old: str, new: str, *caught_by: str) -> Mutant:
    """A fault in a module."""
    return Mutant(name, "streams", f"stores/streams_{module}.py", ((old, new),), caught_by)


def lua(name: str, script: str, old: str, new: str, *caught_by: str) -> Mutant:
    """A fault in a script or a fragment."""
    return Mutant(name, "streams", f"stores/lua/{script}.lua", ((old, new),), caught_by)


# Each names the tests that see it, as `file::test` without the `test_` of either: the whole of them takes minutes.
STREAMS_FAULTS: tuple[Mutant, ...] = (
    # ---- feeder
    streams(
        "what is not due yet is given to the streams",
        "feeder",
        "if row is not None and row.lease_owner is None and not row.lease_expires",
        "if row is not None",
        "delivery::a_delayed_task_does_not_run_early_and_starts_in_its_second",
    ),
    streams(
        "rows that can be seen late are not waited for",
        "feeder",
        "self._offer(Young(self._mark(LATE_SECONDS)))",
        "self._offer(Young(self._looked_to))",
        "delivery::a_row_that_php_inserts_late_is_dispatched_too",
    ),
    streams(
        "a pause that somebody else lifted goes unnoticed",
        "feeder",
        "self._unseen = self._unseen or bool(self._pauses - page.pauses)",
        "self._unseen = self._unseen",
        "delivery::a_pause_that_was_lifted_elsewhere_is_noticed_for_old_tasks_too",
    ),
    streams(
        "ids that begin anew go unnoticed",
        "feeder",
        "if page.newest < known:",
        "if False:",
        "mysql::a_database_that_was_restored_is_dispatched_from_its_first_id",
        "restore::what_a_copy_has_to_run_is_found_though_the_ids_have_gone_on_since",
    ),
    streams(
        "the server is never told that it has everything",
        "feeder",
        '        await self._line.command("SET", f"{self._line.keys}/epoch", int(time.time()))\n',
        "",
        "order::the_known_queues_come_in_their_order_and_within_one_by_arrival",
    ),
    streams(
        "books of entries that are gone are not mended",
        "feeder",
        "            if cursor == 0:\n",
        "            if cursor == 0 or True:\n",
        "delivery::books_of_many_lost_entries_are_mended",
    ),
    streams(
        "what was wanted again is not added again",
        "feeder",
        "        if again:\n            await self.named(again)",
        "        if again:\n            pass",
        "consumers::a_task_that_comes_back_while_its_entry_is_taken_away_is_delivered",
    ),
    streams(
        "what came due last is lost behind a page of older rows",
        "feeder",
        "        if due.next is not None:  #",
        "        if False:  #",
        "delivery::what_comes_due_behind_a_page_of_due_rows_that_nobody_runs_is_seen",
    ),
    streams(
        "a stream is filled again once and no more",
        "feeder",
        '        await self._line.command("DEL", f"{self._line.keys}/filling/{queue}")\n',
        "",
        "delivery::a_full_stream_takes_no_more_and_is_filled_again_as_it_empties",
    ),
    streams(
        "due rows have no part in the filling",
        "feeder",
        "if not await self._refill_due(queue, (priority, task_id)):",
        "if True:",
        "delivery::what_is_due_is_not_starved_by_a_flood",
    ),
    streams(
        "old entries are never asked about",
        "feeder",
        "        if not old:\n            return\n",
        "        return\n",
        "delivery::old_entries_that_are_no_work_any_more_are_dropped_though_nobody_reads",
    ),
    # ---- lease
    streams(
        "entries of a claim that failed stay with their reader",
        "lease",
        "            self._give_back(left, {})\n",
        "",
        "consumers::a_record_that_fails_in_mid_claim_gives_the_entries_back",
    ),
    streams(
        "what could not be claimed just now is dropped",
        "lease",
        "still = await self._feeder.leasable(place.keys() - {task.id for task in tasks})",
        "still = await self._feeder.leasable(())",
        "order::what_the_record_could_not_give_in_one_reply_stays_in_the_stream",
    ),
    streams(
        "what is held back is forgotten",
        "lease",
        "            self._feeder.kept_back.add(task_id)\n",
        "",
        "attack_stale::a_task_that_was_held_back_is_there_as_soon_as_it_is_not",
        "attack_stale::a_task_that_one_process_holds_back_goes_to_another",
    ),
    streams(
        "what was leased past the streams stays in them",
        "lease",
        "        if tasks and self._line.open:\n",
        "        if not tasks:\n",
        "order::what_was_leased_past_the_streams_leaves_them",
    ),
    streams(
        "tasks come in the order of the record",
        "lease",
        "        return sorted(tasks, key=lambda task: place[task.id]), bool(kept)\n",
        "        return list(tasks), bool(kept)\n",
        "order::high_is_served_before_low_whatever_their_priorities",
    ),
    streams(
        "a mixed queue is not leased from the record",
        "lease",
        "                if limit > len(tasks):\n",
        "                if False:\n",
        "order::a_worker_never_reads_a_class_that_it_did_not_ask_for",
    ),
    streams(
        "dead entries end a call",
        "lease",
        "            elif gave_back or len(reading.entries) + reading.malformed < room or time.monotonic() > until:\n",
        "            else:\n",
        "delivery::many_dead_entries_do_not_keep_a_worker_from_the_live_one_behind_them",
    ),
    streams(
        "a class filter is not passed on to the record",
        "lease",
        "                len(place),\n                asked.seconds,\n                classes=asked.classes,\n",
        "                len(place),\n                asked.seconds,\n",
        "order::a_class_that_the_entry_does_not_tell_is_not_leased",
    ),
    # ---- bell and changes
    streams(
        "a new entry rings no bell",
        "bell",
        "            if entry > self._ends.get(queue, (0, 0)):\n                self._ends[queue] = entry\n"
        "                self.ring()\n",
        "            if entry > self._ends.get(queue, (0, 0)):\n                self._ends[queue] = entry\n",
        "consumers::an_entry_wakes_an_instance_whose_record_has_no_news",
    ),
    streams(
        "what came while nobody listened is not heard",
        "bell",
        "            if self._listened and known != entry:\n",
        "            if False:\n",
        "consumers::an_entry_that_came_between_two_reads_is_heard",
    ),
    streams(
        "a new block time counts from the next connection on",
        "bell",
        "                seconds = self._block_seconds()\n",
        "                seconds = self.__dict__.setdefault('_first', self._block_seconds())\n",
        "consumers::a_new_block_time_counts_from_the_next_read_on",
    ),
    streams(
        "news of the record are not passed on",
        "changes",
        "            added = await self._feeder.look()\n",
        "            added = 0\n",
        "delivery::a_row_that_php_inserts_is_dispatched",
    ),
    # ---- chores
    streams(
        "an enqueue does not wait for its entries",
        "chores",
        "timeout=HURRY_SECONDS)",
        "timeout=0)",
        "delivery::a_task_goes_from_the_record_through_its_stream_and_leaves_nothing_behind",
    ),
    streams(
        "an enqueue waits for a server that hangs",
        "chores",
        "timeout=HURRY_SECONDS)",
        "timeout=None)",
        "fallback::an_enqueue_waits_fifty_milliseconds_for_a_frozen_redis_and_then_not_at_all",
    ),
    streams(
        "each caller waits while earlier work is slow",
        "chores",
        "        if self._slow:\n            return\n",
        "",
        "fallback::an_enqueue_waits_fifty_milliseconds_for_a_frozen_redis_and_then_not_at_all",
    ),
    streams(
        "faults of our own are swallowed",
        "chores",
        "            self._fault = fault\n",
        "            pass\n",
        "consumers::a_fault_of_our_own_in_the_background_is_raised_by_the_next_call",
    ),
    # ---- line
    streams(
        "the line is trusted again at once",
        "line",
        "            elif began - good_since >= seconds:\n",
        "            else:\n",
        "fallback::the_line_must_be_good_for_a_while_before_it_is_trusted_again",
    ),
    streams(
        "the line comes back without delivering",
        "line",
        "            if self.deliver_all is not None:\n",
        "            if False:\n",
        "fallback::a_redis_that_restarts_empty_is_told_everything_again",
    ),
    streams(
        "a handler that holds the loop makes the server silent",
        "line",
        "        for _ in range(5):\n",
        "        for _ in range(0):\n",
        "fallback::a_handler_that_holds_the_event_loop_is_not_taken_for_a_dead_redis",
    ),
    streams(
        "a server that refuses is asked as often as one that was away",
        "line",
        "if again else 0",
        "if False else 0",
        "attack_refusals::a_server_that_refuses_again_and_again_is_asked_less_and_less_often",
    ),
    streams(
        "what was leased and given back while the record was read is forgotten",
        "feeder",
        "        if reply.gone and (",
        "        if False and (",
        "delivery::what_is_due_is_not_starved_by_a_flood",
    ),
    # ---- scripts
    lua(
        "what was leased while the record was read gets a second entry",
        "streams_add",
        "  elseif went(id) then\n",
        "  elseif false then\n",
        "blocked::what_was_leased_since_the_record_was_read_gets_no_second_entry",
    ),
    lua(
        "an entry counts wherever it stands",
        "streams_add",
        "    return fits\n",
        "    return true\n",
        "attack_stale::an_id_that_is_given_again_after_a_restore_is_delivered_where_its_task_waits",
    ),
    lua(
        "what comes back while a stream is filled again is passed over",
        "streams_add",
        "    lower(BEHIND, filled, priority, id)\n",
        "",
        "attack_filling::a_task_that_is_given_back_while_its_stream_is_filled_again_is_not_passed_over",
    ),
    lua(
        "only the first old entries are asked about",
        "streams_tend",
        "queue == last_queue and '(' .. last_entry or '-'",
        "'-'",
        "attack_stale::old_entries_that_nobody_may_take_do_not_hide_those_of_tasks_that_are_gone",
    ),
    lua(
        "a stream takes any number",
        "streams_add",
        "if length >= cap or",
        "if false or",
        "delivery::a_full_stream_takes_no_more_and_is_filled_again_as_it_empties",
    ),
    lua(
        "younger tasks overtake those that found the stream full",
        "streams_add",
        " or (queue ~= filled and call('HEXISTS', BEHIND, queue) == 1)",
        "",
        "delivery::younger_tasks_do_not_overtake_those_that_found_the_stream_full",
    ),
    lua(
        "nobody hears that a task was wanted meanwhile",
        "streams_add",
        "  call('SADD', AGAIN, id)\n",
        "",
        "consumers::a_task_that_comes_back_while_its_entry_is_taken_away_is_delivered",
    ),
    lua(
        "a worker reads classes it did not ask for",
        "streams_read",
        "    if unwanted[class] or (wanted and not wanted[class]) then\n",
        "    if false then\n",
        "order::a_worker_never_reads_a_class_that_it_did_not_ask_for",
    ),
    lua(
        "a group that is gone is not made again",
        "streams_read",
        "string.find(reply.err, 'NOGROUP', 1, true)",
        "false",
        "delivery::whatever_redis_loses_every_task_runs_once_and_soon",
    ),
    lua(
        "nonsense stays in its stream",
        "streams_read",
        "        call('XDEL', stream, entry[1])\n",
        "",
        "delivery::nonsense_in_a_stream_is_dropped",
    ),
    lua(
        "a server that has forgotten all says so to nobody",
        "streams_read",
        "if call('EXISTS', EPOCH) == 0 then\n",
        "if false then\n",
        "delivery::a_server_that_was_emptied_is_told_everything_by_the_next_lease",
    ),
    lua(
        "what a dead consumer had read is gone",
        "streams_tend",
        "    put(id, queue, class)\n",
        "",
        "consumers::what_a_killed_consumer_had_read_goes_to_others",
    ),
    lua(
        "dead consumers are never forgotten",
        "streams_tend",
        "        call('XGROUP', 'DELCONSUMER', stream, group, name)\n",
        "",
        "consumers::restarts_leave_no_consumers_behind",
    ),
    lua(
        "a cut stream goes unnoticed",
        "fragments/streams",
        "  return call('HLEN', SENT) > entries\n",
        "  return false\n",
        "delivery::entries_that_somebody_cut_off_are_missed_for_old_tasks_too",
    ),
    lua(
        "a claimed entry is acknowledged and stays",
        "fragments/streams",
        "  call('XDEL', P .. queue, entry)\n",
        "",
        "delivery::a_task_goes_from_the_record_through_its_stream_and_leaves_nothing_behind",
    ),
    lua(
        "classes of a queue are never forgotten",
        "fragments/streams",
        "    call('HDEL', CLASSES .. queue, class)\n",
        "",
        "order::a_class_that_waits_no_more_keeps_nobody_from_its_queue",
    ),
    lua(
        "who stops stays in the group",
        "streams_leave",
        "  if not pending.err and #pending == 0 then\n",
        "  if false then\n",
        "consumers::a_stop_ends_the_blocking_read_at_once_and_leaves_the_group",
    ),
    lua(
        "entries that are given back are gone",
        "streams_back",
        "  if not sent_as(id) then\n",
        "  if sent_as(id) then\n",
        "consumers::a_lease_that_is_cancelled_gives_its_entries_back",
    ),
    # ---- what somebody else writes
    lua(
        "entries that the group has passed wait for ever",
        "streams_tend",
        "  free_passed(queue)\n",
        "",
        "disorder::entries_that_the_group_has_passed_are_given_to_workers_all_the_same",
    ),
    lua(
        "counts of classes stay wrong",
        "streams_tend",
        "  recount(queue)\n",
        "",
        "disorder::counts_of_classes_that_somebody_deleted_come_back",
    ),
    lua(
        "a sign that does not end is believed",
        "streams_read",
        "  if left >= 0 and left <= FILL_MILLISECONDS then\n",
        "  if true then\n",
        "disorder::a_backlog_is_not_stopped_by_a_sign_that_does_not_end",
    ),
    # ---- whose streams they are
    lua(
        "the streams of another database are used",
        "fragments/streams",
        "if not is_ours() then\n",
        "if false and not is_ours() then\n",
        "records::the_second_one_works_from_its_record_and_names_the_setting",
    ),
    lua(
        "whoever asks has the streams at once",
        "fragments/streams",
        "  if now - since < CLAIM_SECONDS then\n",
        "  if false then\n",
        "records::who_asks_is_refused_as_long_as_the_first_one_is_there",
    ),
    lua(
        "nobody answers a claim",
        "fragments/streams",
        "      call('SET', CLAIM, 'refused', 'EX', TOLD_SECONDS)  -- for the doctor\n",
        "",
        "records::who_asks_is_refused_as_long_as_the_first_one_is_there",
    ),
    lua(
        "what the streams of another database held stays",
        "fragments/streams",
        "  forget_all()\n",
        "",
        "records::it_goes_on_by_itself_when_the_first_one_is_there_no_more",
    ),
    streams(
        "nothing is asked before the scripts run",
        "line",
        "        if self._names is None and self.open:\n",
        "        if False:\n",
        "records::nothing_is_read_or_written_before_the_record_has_said_which_it_is",
    ),
    streams(
        "the reason stays that of the first fall",
        "line",
        "        elif refused and reason != self.state.reason:",
        "        elif False:",
        "records::a_fall_for_another_reason_tells_the_new_one_when_it_is_known",
    ),
    streams(
        "an entry of a locked row goes round",
        "lease",
        "rest=0.0 if tasks else _REST_SECONDS",
        "rest=0.0",
        "mysql::a_row_that_somebody_has_locked_holds_up_no_other_and_makes_no_hot_loop",
    ),
    lua(
        "keys of another type stay",
        "streams_mend",
        "    call('DEL', key)\n",
        "",
        "disorder::the_reason_names_the_keys_and_what_is_done_and_the_log_what_was_dropped",
    ),
)

QUICK = frozenset(
    {
        "what is not due yet is given to the streams",
        "tasks come in the order of the record",
        "a new block time counts from the next connection on",
        "an enqueue does not wait for its entries",
        "the line comes back without delivering",
        "younger tasks overtake those that found the stream full",
        "a server that has forgotten all says so to nobody",
    }
)
"""One of each part, which CI runs too: those that are seen without a wait for what never comes."""
