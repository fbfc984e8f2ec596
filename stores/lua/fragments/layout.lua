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
local MAX_RANGES = 16
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

-- PHIDs, idempotency key and max_attempts; empty text and zero stand for none, and nil says that it is damaged.
local function read_rest(body)
  local first, last = FIXED + lane_size(body) + 1, head_size(body)
  if first > last then
    return { '', '', '', 0 }
  end
  local good, rest = pcall(cmsgpack.unpack, sub(body, first, last))
  if good and type(rest) == 'table' and type(rest[1]) == 'string' and type(rest[2]) == 'string'
    and type(rest[3]) == 'string' and type(rest[4]) == 'number' then
    return rest
  end
  return nil
end

local function rest_of(body)
  return read_rest(body) or { '', '', '', 0 }
end

local function is_id(text)
  return #text == 10 and not string.find(text, '%D')
end

-- Whether this is a task of this store. What is not is passed over, until the doctor sets it aside.
local function is_task(id, body)
  return body and is_id(id) and #body >= FIXED and head_size(body) <= #body
    and string.find(lane_of(body), '/', 1, true) ~= nil
end

-- What was answered to an enqueue: its sequence, the time, the first id and the other answers (enqueue.lua). A damaged
-- answer is none, so that it stands in nobody's way: a call that is sent again just then is run again.
local function kept_answer(packed)
  local good, answer = pcall(cmsgpack.unpack, packed or '')
  if not good or type(answer) ~= 'table' or type(answer[1]) ~= 'number' or type(answer[2]) ~= 'number'
    or type(answer[3]) ~= 'string' or not is_id(answer[3]) or type(answer[4]) ~= 'table' then
    return nil
  end
  for _, part in ipairs(answer[4]) do
    if type(part) ~= 'string' then
      return nil
    end
  end
  return #answer[4] % 3 == 0 and answer or nil
end

local function is_place(name)
  return string.find(name, '^[RDBHW]:[^/]*/') ~= nil
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

local function hold_of(owner, expires)
  if not owner and not expires then
    return ''
  end
  return (expires and format('%010d', expires) or NO_EXPIRY) .. (owner or '')
end

local function read_hold(row, hold)
  row.owner, row.expires = nil, nil
  if hold and hold ~= '' then
    local expires = sub(hold, 1, 10)
    row.expires = is_id(expires) and tonumber(expires) or nil
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

-- A damaged state is none: the task is as it was enqueued.
local function sound_state(state)
  return state and #state >= 20 and #state <= 20 + 8 * MAX_RANGES and #state % 8 == 4 and state or nil
end

local function read_state(row, state)
  if sound_state(state) then
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

-- The end of a task of which nothing is known but that it ended: a failure.
local function unknown_end(body, ended_at)
  local _, priority = struct.unpack('>I4I4', body)
  return struct.pack('>BI4I4I4I4', 1, priority, ended_at, 0, 0) .. string.char(1) .. '0' .. string.char(0)
end

local function is_end(ended)
  if #ended < 20 or byte(ended) > 2 then
    return false
  end
  local spent_at = 19 + byte(ended, 18)
  return spent_at <= #ended and spent_at + 8 * byte(ended, spent_at) <= #ended
    and string.find(sub(ended, 19, spent_at - 1), '^%d+$') ~= nil
end

-- A damaged end is an unknown one. Nil: there is none.
local function sound_end(ended, body)
  if not ended or is_end(ended) then
    return ended or nil
  end
  return unknown_end(body, (struct.unpack('>I4', body)))
end

local function read_ended(row, ended)
  row.result, row.priority, row.ended_at, row.failures, row.lost = struct.unpack('>BI4I4I4I4', ended)
  local spent_at = 19 + byte(ended, 18)
  local hold_at = spent_at + 1 + 8 * byte(ended, spent_at)
  row.spent = sub(ended, spent_at + 1, hold_at - 1)
  read_hold(row, sub(ended, hold_at))
end
