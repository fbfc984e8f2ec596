-- Reads rows with their payloads. use: base rows
--
-- In: now, ids. Out: for each its body, hold, state, end and the payload that stands apart; nil where there is none.
local ids = cmsgpack.unpack(ARGV[2])
local bodies, holds = fetch('HMGET', BODY, ids), fetch('HMGET', HOLD, ids)
local states, ends = fetch('HMGET', STATE, ids), fetch('HMGET', ENDED, ids)
local out = {}
for at, id in ipairs(ids) do
  local body = bodies[at]
  out[#out + 1] = body
  out[#out + 1] = holds[at]
  out[#out + 1] = states[at]
  out[#out + 1] = ends[at]
  out[#out + 1] = body and byte(body, 13) % 2 == APART and call('HGET', DATA, id)
end
return out
