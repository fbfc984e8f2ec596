-- Reads rows with their payloads. use: base layout
--
-- In: now, ids, bytes after which no more are read.
-- Out: for each its body, hold, state, end and the payload that stands apart, nil where there is none; perhaps not for
-- all of the ids, but for one at least.
local ids, room = cmsgpack.unpack(ARGV[2]), tonumber(ARGV[3])
local bodies, holds = fetch('HMGET', BODY, ids), fetch('HMGET', HOLD, ids)
local states, ends = fetch('HMGET', STATE, ids), fetch('HMGET', ENDED, ids)
local out = {}
for at, id in ipairs(ids) do
  local body = is_task(id, bodies[at]) and bodies[at]
  local apart = body and byte(body, 13) % 2 == APART and call('HGET', DATA, id)
  room = room - (body and #body or 0) - (apart and #apart or 0)
  if room < 0 and at > 1 then
    break
  end
  out[#out + 1] = body
  out[#out + 1] = holds[at]
  out[#out + 1] = body and sound_state(states[at]) or false
  out[#out + 1] = body and sound_end(ends[at], body) or false
  out[#out + 1] = apart
end
return out
