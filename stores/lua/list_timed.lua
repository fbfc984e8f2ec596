-- One step through the active rows that have a time or are odd, in the order of their places. use: base layout heads rows wanted
--
-- In: now, patience, filter, rows to look at, the place to begin with and the rank in it (empty: from the start), the
-- priority and id after which rows count and the one up to which (empty: all), rows wanted.
-- Out: the place and rank to go on from (empty: there are no more), then id, head, hold and state of the first rows
-- wanted among those looked at, by priority then id. So a page costs no more than itself to bring over.
local patience, filter, budget = tonumber(ARGV[2]), read_filter(ARGV[3]), tonumber(ARGV[4])
local start, rank = ARGV[5], tonumber(ARGV[6])
local after_priority, after_id, last_priority, last_id = tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9]), ARGV[10]
local wanted = tonumber(ARGV[11])
local SLICE = 250

local function is_before(priority, id, other_priority, other_id)
  return priority < other_priority or (priority == other_priority and id < other_id)
end

local looked_at = {}

-- Keep those of these ids that could stand on the page.
local function look_at(ids)
  for at, score in ipairs(fetch('ZMSCORE', ACTIVE, ids)) do
    local id, priority = ids[at], tonumber(score or '')
    if priority and (not after_priority or is_before(after_priority, after_id, priority, id))
      and (not last_priority or is_before(priority, id, last_priority, last_id)) then
      looked_at[#looked_at + 1] = { priority, id }
    end
  end
  budget = budget - #ids
end

local out = { '', '0' }
local places = places_of({ 'D', 'B', 'H', 'W' })
table.sort(places)
for _, place in ipairs(places) do
  if place >= start and is_place(place) and out[1] == '' then
    local from = place == start and rank or 0
    if budget > 0 then
      local ids = try('ZRANGE', P .. place, from, from + budget - 1) or {}
      look_at(ids)
      from = from + #ids
    end
    if budget <= 0 then
      out[1], out[2] = place, format('%d', from)
    end
  end
end
if out[1] == '' then
  look_at(call('SMEMBERS', ODD))
end

table.sort(looked_at, function(one, other)
  return is_before(one[1], one[2], other[1], other[2])
end)
local at = 1
while at <= #looked_at and #out < 2 + 4 * wanted do
  local ids = {}
  for number = at, math.min(at + SLICE - 1, #looked_at) do
    ids[#ids + 1] = looked_at[number][2]
  end
  show_wanted(out, ids, filter, patience)
  at = at + #ids
end
for number = #out, 3 + 4 * wanted, -1 do
  out[number] = nil
end
return out
