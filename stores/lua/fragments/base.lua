-- The keys of a queue, its time, and calls with more values than fit on Lua's stack.
--
-- Every key begins with KEYS[1], which holds the hash tag: one queue is one slot. Ids are texts of ten digits.
--   body     id -> what never changes: when and how it was enqueued, its lane, its payload (layout.lua)
--   data     id -> a payload too long for the body
--   hold     id -> ten digits of expiry (or ten dashes) and the owner; none: never leased, or given back untouched
--   state    id -> counts, times, priority and spent receipts, once one of them is no longer as enqueued
--   ended    id -> how it ended; a task with this is archived, one without is active
--   active   ids of active tasks by priority       archive  ids of archived tasks by id     over  the same by time
--   R:<lane> and others   the sorted sets that an active task may stand in (see place_of)
--   heads:<kind>, heads:<kind>:<queue>   the first row of each of these (heads.lua)
--   lanes    where each class has rows, by class and queue (heads.lua)
--   odd      active tasks that nobody may lease: parked, or an owner without an expiry
--   failing  active tasks that have failed
--   history:<id>  its error history                pauses   stop signs that every lease obeys
--   last_id  the last id handed out                keys     idempotency key -> id of its first task
--   events   event id -> what it was answered      event_times  event ids by time
--   caller:<process>  the last answer of each of its enqueueing slots (enqueue.lua)
--   version, quiet    see bell.lua                 orders, handed   see orders.lua
local P = KEYS[1]
local BODY, DATA, HOLD, STATE, ENDED = P .. 'body', P .. 'data', P .. 'hold', P .. 'state', P .. 'ended'
local ACTIVE, ARCHIVE, OVER = P .. 'active', P .. 'archive', P .. 'over'
local ODD, FAILING, PAUSES = P .. 'odd', P .. 'failing', P .. 'pauses'
local LAST_ID, KNOWN_KEYS, EVENTS, EVENT_TIMES = P .. 'last_id', P .. 'keys', P .. 'events', P .. 'event_times'
local LANES = P .. 'lanes'

local U32 = 4294967295
local BOUND = '0000000000'
local call, byte, sub, format = redis.call, string.byte, string.sub, string.format
local now = tonumber(ARGV[1]) or tonumber(call('TIME')[1])

-- Lua's stack takes just under 8,000 values. An even number, so that pairs stay together.
local STEP = 5000

-- A full server refuses what needs memory until a script has begun to write. Work that runs must go on, so its scripts
-- begin by deleting a key that never is.
local goes_on = false
local function go_on_when_full()
  if not goes_on then
    goes_on = true
    call('DEL', P .. 'nothing')
  end
end

-- What a command answers; nil where it fails, as on a key of another type.
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    return nil
  end
  return answer
end

-- End the script where this key is of another type. Asked before the first write: what fails later leaves a half.
-- Keys that were read in the same way need not be asked for.
local proven = {}
local function expect(key, kind)
  if proven[key] then
    return
  end
  local found = call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then
    error('the key ' .. key .. ' holds a ' .. found, 0)
  end
  proven[key] = true
end

-- A writing command with all these values.
local function spread(command, key, values)
  for first = 1, #values, STEP do
    call(command, key, unpack(values, first, math.min(first + STEP - 1, #values)))
  end
end

-- What a command answers for each of these fields.
local function fetch(command, key, fields)
  if #fields == 0 then
    return {}
  end
  local found = call(command, key, unpack(fields, 1, math.min(STEP, #fields)))
  proven[key] = true
  for first = STEP + 1, #fields, STEP do
    for _, value in ipairs(call(command, key, unpack(fields, first, math.min(first + STEP - 1, #fields)))) do
      found[#found + 1] = value
    end
  end
  return found
end

-- The list of this name, which is made when it is new.
local function listed(lists, name)
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
  end
  return list
end

-- Seconds from the expiry to the first second in which the row may be leased (task.due_at).
local function grace_of(kind, patience)
  if kind == 'D' then
    return 0
  end
  return kind == 'W' and 1 + patience or 1
end

-- The first rows of the places of a queue, or of all queues (heads.lua).
local function heads_key(kind, queue)
  return P .. 'heads:' .. kind .. (queue and ':' .. queue or '')
end

-- A lane in the set `lanes`. No class has a NUL.
local function lane_member(queue, class)
  return class .. '\0' .. queue
end

local function set_of(list)
  local set = {}
  for _, value in ipairs(list) do
    set[value] = true
  end
  return set
end
