-- One step through the active rows by priority then id. use: base layout heads rows wanted
--
-- In: now, patience, filter, rows to look at, rows wanted, priority and id of the row to go on after (empty: from the
-- start), rows to skip (only where nothing is filtered but the priority).
-- Out: priority and id of the last row looked at (empty: there are no more), then id, head, hold and state of each.
local patience, filter = tonumber(ARGV[2]), read_filter(ARGV[3])
local budget, wanted = tonumber(ARGV[4]), tonumber(ARGV[5])
local after_priority, after_id, skip = ARGV[6], ARGV[7], tonumber(ARGV[8])
local SLICE = 250

local function below(priority)
  return call('ZCOUNT', ACTIVE, '-inf', '(' .. priority)
end

-- How many rows stand before or at this one, which may be gone.
local function rank_after(priority, id)
  local low, high = below(priority), call('ZCOUNT', ACTIVE, '-inf', priority)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if call('ZRANGE', ACTIVE, middle, middle)[1] <= id then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local first, last = 0, call('ZCARD', ACTIVE)
if after_priority ~= '' then
  first = rank_after(after_priority, after_id)
end
if filter.min_priority then
  first = math.max(first, below(format('%d', filter.min_priority)))
end
if filter.max_priority then
  last = call('ZCOUNT', ACTIVE, '-inf', format('%d', filter.max_priority))
end
first = first + skip

local out, seen = { '', '' }, {}
local bound = math.min(first + budget, last)
while first < bound and #out < 2 + 4 * wanted do
  seen = call('ZRANGE', ACTIVE, first, math.min(first + SLICE, bound) - 1, 'WITHSCORES')
  local ids = {}
  for at = 1, #seen, 2 do
    ids[#ids + 1] = seen[at]
  end
  show_wanted(out, ids, filter, patience)
  first = first + #ids
end
if first < last and #seen > 0 then
  out[1], out[2] = seen[#seen], seen[#seen - 1]
end
return out
