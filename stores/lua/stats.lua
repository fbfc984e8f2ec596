-- Counts of the whole queue. use: base layout heads
--
-- In: now. Out: active without parked ones, held, archived, failing without parked ones.
local active, failing, held = call('ZCARD', ACTIVE), call('SCARD', FAILING), 0
for _, place in ipairs(places_of({ 'H', 'W' })) do
  held = held + (try('ZCOUNT', P .. place, format('%d', now), '+inf') or 0)
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
