-- One step through the archived rows, newest id first. use: base layout heads rows wanted
--
-- In: now, filter, rows to look at, rows wanted, the id to go on below (empty: from the newest).
-- Out: the last id looked at (empty: there are no more), then id, head and end of each.
local filter, budget, wanted, before = read_filter(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local SLICE = 250

local out = { '' }
while budget > 0 do
  local bound = before == '' and '+inf' or '(' .. before
  local found = call('ZREVRANGEBYSCORE', ARCHIVE, bound, '-inf', 'LIMIT', 0, math.min(SLICE, budget), 'WITHSCORES')
  if #found == 0 then
    out[1] = ''
    break
  end
  local ids = {}
  for at = 1, #found, 2 do
    ids[#ids + 1] = found[at]
  end
  local bodies, ends = fetch('HMGET', BODY, ids), fetch('HMGET', ENDED, ids)
  for at, id in ipairs(ids) do
    if #out >= 1 + 3 * wanted then
      break
    end
    if is_task(id, bodies[at]) and ends[at] then
      local row = { body = bodies[at], ended = sound_end(ends[at], bodies[at]) }
      read_ended(row, row.ended)
      local ended_so = (not filter.results or filter.results[row.result])
        and (not filter.ended_since or row.ended_at >= filter.ended_since)
      if ended_so and is_wanted(row, filter) then
        out[#out + 1] = id
        show_ended(out, row)
      end
    end
    before = found[2 * at]
  end
  budget = budget - #ids
  out[1] = before
  if #out >= 1 + 3 * wanted then
    break
  end
end
return out
