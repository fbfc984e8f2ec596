-- One step of counting the rows that could be leased now, by place and priority. use: base layout heads
--
-- In: now, patience, steps to make, the place to begin with and the rank in it (empty: from the start).
-- Out: the place and rank to go on from (empty: done), then place, priority, number and smallest id of each group.
local patience, budget = tonumber(ARGV[2]), tonumber(ARGV[3])
local start, rank = ARGV[4], tonumber(ARGV[5])
local out = { '', '0' }

local function show(place, priority, count, first)
  out[#out + 1] = place
  out[#out + 1] = format('%d', priority)
  out[#out + 1] = format('%d', count)
  out[#out + 1] = first
end

-- A ready place is in this very order: one look at the first of each priority, and one count.
local function count_ready(place, from)
  while budget > 0 do
    local first = try('ZRANGE', P .. place, from, from, 'WITHSCORES') or {}
    if #first == 0 then
      return nil
    end
    local count = call('ZCOUNT', P .. place, first[2], first[2])
    if is_id(first[1]) then
      show(place, tonumber(first[2]), count, first[1])
    end
    from = from + count
    budget = budget - 1
  end
  return from
end

local function count_due(place, from)
  local due = try('ZCOUNT', P .. place, '-inf', format('%d', now - grace_of(sub(place, 1, 1), patience))) or 0
  local last = math.min(due, from + budget)
  if from >= last then
    return nil
  end
  local ids, counts, firsts = call('ZRANGE', P .. place, from, last - 1), {}, {}
  for at, priority in ipairs(fetch('ZMSCORE', ACTIVE, ids)) do
    if priority and is_id(ids[at]) then
      counts[priority] = (counts[priority] or 0) + 1
      firsts[priority] = math.min(firsts[priority] or U32, tonumber(ids[at]))
    end
  end
  for priority, count in pairs(counts) do
    show(place, tonumber(priority), count, format('%010d', firsts[priority]))
  end
  budget = budget - #ids
  return last < due and last or nil
end

local places = places_of(KINDS)
table.sort(places)
for _, place in ipairs(places) do
  if place >= start and is_place(place) then
    local from = place == start and rank or 0
    local next_rank = (sub(place, 1, 1) == 'R' and count_ready or count_due)(place, from)
    if next_rank or budget <= 0 then
      -- where nothing is left of this place, going on from it finds nothing and moves on
      out[1], out[2] = place, format('%d', next_rank or U32)
      break
    end
  end
end
return out
