-- How the parts of a task are packed, and where a task stands.
--
-- body   created, priority, delay (4 bytes each), flags (1), length of the lane (2) and of the rest (2), the lane
--        (queue/class), the rest (msgpack: PHIDs, key, max_attempts; absent when none is set), the payload
-- state  failures, time of the latest, losses, modified, priority (4 bytes each), then pairs of spent seconds
-- ended  result (1), priority, when, failures, losses (4 each), duration (length and digits), spent pairs (number and
--        8 bytes each), then owner and expiry as in `hold`
local FIXED = 17
local APART, KEYED, INHERITS = 1, 2, 4
local NO_EXPIRY = '----------'
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

-- The state that a row has before it has one.
local function new_state(body)
  local created, priority = struct.unpack('>I4I4', body)
  return struct.pack('>I4I4I4I4I4', 0, 0, 0, created, priority)
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
