-- One step through the active rows that have a time or are odd, in the order of their places. use: base layout rows wanted
--
-- In: now, patience, filter, rows to look at, the place to begin with and the rank in it (empty: from the start).
-- Out: the place and rank to go on from (empty: there are no more), then id, head, hold and state of each.
local patience, filter, budget = tonumber(ARGV[2]), read_filter(ARGV[3]), tonumber(ARGV[4])
local start, rank = ARGV[5], tonumber(ARGV[6])

local out = { '', '0' }
local places = call('SMEMBERS', PLACES)
table.sort(places)
for _, place in ipairs(places) do
  if place >= start and sub(place, 1, 1) ~= 'R' then
    if budget <= 0 then
      out[1], out[2] = place, '0'
      return out
    end
    local from = place == start and rank or 0
    local ids = call('ZRANGE', P .. place, from, from + budget - 1)
    show_wanted(out, ids, filter, patience)
    budget = budget - #ids
    if budget <= 0 then
      out[1], out[2] = place, format('%d', from + #ids)
      return out
    end
  end
end
show_wanted(out, call('SMEMBERS', ODD), filter, patience)
return out
