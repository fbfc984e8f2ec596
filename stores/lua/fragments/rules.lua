-- Who holds a row, which receipts are spent, and what an outcome does to a row.

-- Whether an active row is held by this lease. A sentinel never fences.
local function is_held(row, owner, expires)
  if not row or not row.active or row.owner ~= owner or is_sentinel(owner) or PARKED[owner] then
    return false
  end
  return expires == '' or (row.expires ~= nil and format('%010d', row.expires) == expires and row.expires > now)
end

-- The ranges of spent seconds: given back or moved while still to come, and never granted again.
local function ranges_of(spent)
  local ranges = {}
  for at = 1, #spent, 8 do
    local first, last = struct.unpack('>I4I4', spent, at)
    ranges[#ranges + 1] = { first, last }
  end
  return ranges
end

-- Make one of the two nearest ranges; only a later lease may become longer by it, by the seconds between them.
local function join_nearest(ranges)
  local place, gap = 2, U32
  for at = 2, #ranges do
    local distance = ranges[at][1] - ranges[at - 1][2]
    if distance < gap then
      place, gap = at, distance
    end
  end
  ranges[place - 1][2] = ranges[place][2]
  table.remove(ranges, place)
end

-- Spend the receipt of this row, if it has one that is still to come.
local function spend_receipt(row)
  if not is_receipt(row.owner) or not row.expires or row.expires <= now then
    return
  end
  local ranges = ranges_of(row.spent)
  table.insert(ranges, { row.expires, row.expires })
  table.sort(ranges, function(one, other)
    return one[1] < other[1]
  end)
  local joined = {}
  for _, range in ipairs(ranges) do
    local last = joined[#joined]
    if last and range[1] <= last[2] + 1 then
      last[2] = math.max(last[2], range[2])
    elseif range[2] > now then
      joined[#joined + 1] = range
    end
  end
  while #joined > MAX_RANGES do
    join_nearest(joined)
  end
  local packed = {}
  for at, range in ipairs(joined) do
    packed[at] = struct.pack('>I4I4', range[1], range[2])
  end
  row.spent = table.concat(packed)
end

-- The first expiry from the wanted one on that this owner may be granted. Workers need no such care.
local function first_unspent(spent, owner, wanted)
  if spent ~= '' and is_receipt(owner) then
    for _, range in ipairs(ranges_of(spent)) do
      if range[1] <= wanted and wanted <= range[2] then
        return range[2] + 1
      end
    end
  end
  return wanted
end

local function give_back(row, owner, expires)
  spend_receipt(row)
  row.owner, row.expires, row.modified = owner, expires, now
  put(row)
end

local function archive(row, result, duration)
  row.ended = ended_of(row, result, duration)
  row.result, row.active = result, nil
  put(row)
end

-- Write down how the run of the row's holder ended.
local function remember(row, kind, duration, message, trace)
  local entry = { row.failures + 1, kind, now, row.owner or '', duration, message, trace }
  later('RPUSH', P .. 'history:' .. row.id, cmsgpack.pack(entry))
end
