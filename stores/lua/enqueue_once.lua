-- Adds the task of an event, or answers what the event was answered before. use: base bell layout heads rows insert
--
-- In: now, floor of ids, event id, digest, the task (and its payload where it stands apart).
-- Out: length of the digest (2 bytes), the digest, the id, the head of the body.
local event_id, digest = ARGV[3], ARGV[4]

local known = call('HGET', EVENTS, event_id)
if known then
  return known
end
local tasks = new_tasks(5, 1)
local first, answers = insert(tasks, tonumber(ARGV[2]))
if not first then
  return redis.error_reply('FULL no task ids left')
end
local id, head = answers[2] or first, answers[3] or head_of(struct.pack('>I4', now) .. tasks[1].rest)
local answer = struct.pack('>I2', #digest) .. digest .. id .. head
later('HSET', EVENTS, event_id, answer)
later('ZADD', EVENT_TIMES, now, event_id)
write()
ring()
return answer
