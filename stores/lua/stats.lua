-- Counts of the whole queue. use: base layout
--
-- In: now. Out: active without parked ones, held, archived, failing without parked ones.
local active, failing, held = call('ZCARD', ACTIVE), call('SCARD', FAILING), 0
for _, place in ipairs(call('SMEMBERS', PLACES)) do
  local kind = sub(place, 1, 1)
  if kind == 'H' or kind == 'W' then
    held = held + (try('ZCOUNT', P .. place, format('%d', now), '+inf') or 0)
  end
end
for _, id in ipairs(call('SMEMBERS', ODD)) do
  local row = {}
  read_hold(row, call('HGET', HOLD, id))
  if PARKED[row.owner] then
    active = active - 1
    failing = failing - call('SISMEMBER', FAILING, id)
  end
end
return { active, held, call('ZCARD', ARCHIVE), failing }
