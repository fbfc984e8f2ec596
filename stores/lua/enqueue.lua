-- Adds tasks, all or none. use: base bell orders hand layout heads rows insert
--
-- In: now, floor of ids, caller, slot, sequence, number of tasks, each task (and its payload where it stands apart).
-- Out: the time, the first id, the answers that are not the next id (insert.lua).
-- A task that comes alone, while nothing is there that could be before it, goes to a worker that waits (hand.lua).
-- A caller sends one sequence of a slot again until it is answered; what was answered is kept for that, until its next.
local kept = kept_answer(call('HGET', caller, slot))
if kept and kept[1] == sequence then
  return { kept[2], kept[3], kept[4] }
end
if kept and kept[1] > sequence then
  return redis.error_reply('SUPERSEDED this slot has a later call')
end

local first, answers = insert(new_tasks(7, tonumber(ARGV[6])), tonumber(ARGV[2]))
if not first then
  return redis.error_reply('FULL no task ids left')
end
later('HSET', caller, slot, cmsgpack.pack({ sequence, now, first, answers }))
write()
call('EXPIRE', caller, ANSWER_SECONDS)
end_orders(over)
ring()
return { now, first, answers }
