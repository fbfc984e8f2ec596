-- Rows: read whole, changed by plain rules, and written back together with every index they stand in.
--
-- body   created, priority, delay (4 bytes each), flags (1), length of the lane (2) and of the rest (2), the lane
--        (queue/class), the rest (msgpack: PHIDs, key, max_attempts; absent when none is set), the payload
-- state  failures, time of the latest, losses, modified, priority (4 bytes each), then pairs of spent seconds
-- ended  result (1), priority, when, failures, losses (4 each), duration (length and digits), spent pairs (number and
--        8 bytes each), then owner and expiry as in `hold`
local FIXED = 17
local APART, KEYED, INHERITS = 1, 2, 4
local NO_EXPIRY = '----------'
local MAX_HISTORY, MAX_RANGES = 25, 16
local PARKED = { ['gorge-completion-pending'] = true, ['gorge-failure-pending'] = true }

local function lane_size(body)
  return byte(body, 14) * 256 + byte(body, 15)
end

local function head_size(body)
  return FIXED + lane_size(body) + byte(body, 16) * 256 + byte(body, 17)
end

local function head_of(body)
  return sub(body, 1, head_size(body))
end

local function lane_of(body)
  return sub(body, FIXED + 1, FIXED + lane_size(body))
end

-- PHIDs, idempotency key and max_attempts; empty text and zero stand for none.
local function rest_of(body)
  local first, last = FIXED + lane_size(body) + 1, head_size(body)
  if first > last then
    return { '', '', '', 0 }
  end
  return cmsgpack.unpack(sub(body, first, last))
end

local function is_worker(owner)
  return owner ~= nil and sub(owner, 1, 3) == 'qr:'
end

local function is_sentinel(owner)
  return sub(owner, 1, 1) == '(' and sub(owner, -1) == ')'
end

-- Whether this owner's lease is a receipt: an HTTP caller's, whose name may come back.
local function is_receipt(owner)
  return owner ~= nil and not (is_worker(owner) or is_sentinel(owner) or PARKED[owner])
end

-- The sorted set in which a row with this owner and expiry stands, by the kind of its wait, and its score there:
--   R  ready, by priority          D  until an absolute time       B  until a back-off is over
--   H  yielded, or held            W  held by one of our workers       (these by expiry)
-- Nil: among the odd ones.
local function place_of(owner, expires, lane, priority)
  if not expires then
    if owner then
      return nil
    end
    return 'R:' .. lane, priority
  end
  if not owner or owner == '(delay)' then
    return 'D:' .. lane, expires
  end
  if owner == '(retry)' or owner == '(unknown)' then
    return 'B:' .. lane, expires
  end
  if PARKED[owner] then
    return nil
  end
  return (is_worker(owner) and 'W:' or 'H:') .. lane, expires
end

-- Seconds from the expiry to the first second in which the row may be leased (task.due_at).
local function grace_of(kind, patience)
  if kind == 'D' then
    return 0
  end
  return kind == 'W' and 1 + patience or 1
end

local function hold_of(owner, expires)
  if not owner and not expires then
    return ''
  end
  return (expires and format('%010d', expires) or NO_EXPIRY) .. (owner or '')
end

local function read_hold(row, hold)
  row.owner, row.expires = nil, nil
  if hold and hold ~= '' then
    row.expires = tonumber(sub(hold, 1, 10))
    row.owner = #hold > 10 and sub(hold, 11) or nil
  end
end

local function state_of(row)
  return struct.pack('>I4I4I4I4I4', row.failures, row.failed_at, row.lost, row.modified, row.priority) .. row.spent
end

local function read_state(row, state)
  if state then
    row.failures, row.failed_at, row.lost, row.modified, row.priority = struct.unpack('>I4I4I4I4I4', state)
    row.spent = sub(state, 21)
  else
    row.failures, row.failed_at, row.lost, row.spent = 0, 0, 0, ''
    row.modified, row.priority = struct.unpack('>I4I4', row.body)
  end
end

local function ended_of(row, result, duration)
  local spent = string.char(#row.spent / 8) .. row.spent
  return struct.pack('>BI4I4I4I4', result, row.priority, now, row.failures, row.lost)
    .. string.char(#duration) .. duration .. spent .. hold_of(row.owner, row.expires)
end

local function read_ended(row, ended)
  row.result, row.priority, row.ended_at, row.failures, row.lost = struct.unpack('>BI4I4I4I4', ended)
  local spent_at = 19 + byte(ended, 18)
  local hold_at = spent_at + 1 + 8 * byte(ended, spent_at)
  row.spent = sub(ended, spent_at + 1, hold_at - 1)
  read_hold(row, sub(ended, hold_at))
end

-- An active row from its parts.
local function active_row(id, body, hold, state)
  local row = { id = id, body = body, active = true, had_hold = hold and true, had_state = state }
  read_hold(row, hold)
  read_state(row, state)
  row.lane = lane_of(body)
  row.was, row.was_score = place_of(row.owner, row.expires, row.lane, row.priority)
  row.old_state = state_of(row)
  row.had_failures = row.failures > 0
  row.had_priority = row.priority
  return row
end

-- The rows of these ids, by id: each once, and none for an id that is not there.
local function load(ids)
  local rows, unique, seen = {}, {}, {}
  for _, id in ipairs(ids) do
    if id ~= '' and not seen[id] then
      seen[id] = true
      unique[#unique + 1] = id
    end
  end
  local bodies, holds = fetch('HMGET', BODY, unique), fetch('HMGET', HOLD, unique)
  local states, ends = fetch('HMGET', STATE, unique), fetch('HMGET', ENDED, unique)
  local order = {}
  for at, id in ipairs(unique) do
    if bodies[at] then
      local row
      if ends[at] then
        row = { id = id, body = bodies[at], ended = ends[at], was_ended = true }
        read_ended(row, ends[at])
      else
        row = active_row(id, bodies[at], holds[at], states[at])
      end
      rows[id] = row
      order[#order + 1] = row
    end
  end
  return rows, order
end

-- ---- changes, which `write` stores

local changed = {}
local entered = {}
local pending = { ZREM = {}, HDEL = {}, SREM = {}, ZADD = {}, HSET = {}, SADD = {}, RPUSH = {} }

-- Have `write` run this command with these values among others.
local function later(command, key, first, second)
  local values = listed(pending[command], key)
  values[#values + 1] = first
  values[#values + 1] = second
end

local function put(row)
  if not row.changed then
    row.changed = true
    changed[#changed + 1] = row
  end
end

local function leave(id, place)
  if place then
    later('ZREM', P .. place, id)
  else
    later('SREM', ODD, id)
  end
end

local function enter(id, place, score)
  if place then
    entered[place] = true
    later('ZADD', P .. place, score, id)
  else
    later('SADD', ODD, id)
  end
end

local function change_active(row)
  local id = row.id
  local place, score = place_of(row.owner, row.expires, row.lane, row.priority)
  if row.was_ended then
    later('HDEL', ENDED, id)
    later('ZREM', ARCHIVE, id)
    later('ZREM', OVER, id)
    enter(id, place, score)
  elseif place ~= row.was then
    leave(id, row.was)
    enter(id, place, score)
  elseif score ~= row.was_score then
    enter(id, place, score)
  end
  local hold = hold_of(row.owner, row.expires)
  if hold ~= '' then
    later('HSET', HOLD, id, hold)
  elseif row.had_hold then
    later('HDEL', HOLD, id)
  end
  local state = state_of(row)
  if state ~= row.old_state then
    later('HSET', STATE, id, state)
  end
  if row.priority ~= row.had_priority then
    later('ZADD', ACTIVE, row.priority, id)
  end
  if row.failures > 0 and not row.had_failures then
    later('SADD', FAILING, id)
  end
end

local function change_ended(row)
  local id = row.id
  leave(id, row.was)
  later('ZREM', ACTIVE, id)
  if row.had_hold then
    later('HDEL', HOLD, id)
  end
  if row.had_state then
    later('HDEL', STATE, id)
  end
  if row.had_failures then
    later('SREM', FAILING, id)
  end
  later('HSET', ENDED, id, row.ended)
  later('ZADD', ARCHIVE, tonumber(id), id)
  later('ZADD', OVER, now, id)
end

local function flush(command)
  for key, values in pairs(pending[command]) do
    spread(command, key, values)
  end
end

-- Store every change. What frees memory comes first: a full server lets a script go on that has begun to write, so
-- outcomes can be written when there is no room for new tasks.
local function write()
  for _, row in ipairs(changed) do
    if row.active then
      change_active(row)
    else
      change_ended(row)
    end
  end
  for place in pairs(entered) do
    later('SADD', PLACES, place)
  end
  flush('ZREM')
  flush('HDEL')
  flush('SREM')
  flush('ZADD')
  flush('HSET')
  flush('SADD')
  flush('RPUSH')
  for history in pairs(pending.RPUSH) do
    call('LTRIM', history, -MAX_HISTORY, -1)
  end
end

-- ---- rules

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

-- ---- answers

local function show_nothing(out, count)
  for _ = 1, count do
    out[#out + 1] = ''
  end
end

-- Head, hold and state of an active row.
local function show_active(out, row)
  out[#out + 1] = head_of(row.body)
  out[#out + 1] = hold_of(row.owner, row.expires)
  out[#out + 1] = state_of(row)
end

-- Head and end of an archived row.
local function show_ended(out, row)
  out[#out + 1] = head_of(row.body)
  out[#out + 1] = row.ended
end
