-- New tasks, as Python packed them (redis_new.py): a body that lacks its first four bytes, the time.

-- The tasks in the arguments from `at` on: { rest, payload, priority of the parent }, and where they end.
local function new_tasks(at, count, parent_priority)
  local tasks = {}
  for number = 1, count do
    local rest = ARGV[at]
    at = at + 1
    local task = { rest = rest, parent_priority = parent_priority, flags = byte(rest, 9) }
    if task.flags % 2 == APART then
      task.payload = ARGV[at]
      at = at + 1
    end
    tasks[number] = task
  end
  return tasks, at
end

local function has_key(task)
  return task.flags % (2 * KEYED) >= KEYED
end

-- Which of the keys of these tasks are known: key -> id. A key whose task is gone is not.
local function known_keys(tasks)
  local keys, known = {}, {}
  for _, task in ipairs(tasks) do
    if has_key(task) then
      -- the time is missing, so that everything stands four bytes further in front
      task.key = rest_of('\0\0\0\0' .. task.rest)[3]
      keys[#keys + 1] = task.key
    end
  end
  for at, id in ipairs(fetch('HMGET', KNOWN_KEYS, keys)) do
    if id and is_task(id, call('HGET', BODY, id)) then
      known[keys[at]] = id
    end
  end
  return known
end

-- The highest id of any task that an index knows.
local function highest_id()
  local highest = tonumber(call('ZREVRANGE', ARCHIVE, 0, 0)[1]) or 0
  for first = 0, call('ZCARD', ACTIVE) - 1, STEP do
    for _, id in ipairs(call('ZRANGE', ACTIVE, first, first + STEP - 1)) do
      if is_id(id) then
        highest = math.max(highest, tonumber(id))
      end
    end
  end
  return highest
end

-- Whether no task has one of the ids after `last`.
local function are_free(last, count)
  local ids = {}
  for at = 1, count do
    ids[at] = format('%010d', last + at)
  end
  for _, body in ipairs(fetch('HMGET', BODY, ids)) do
    if body then
      return false
    end
  end
  return true
end

-- Ids as one block above every id that this server or the caller has seen; nil when there are not so many left.
-- No task is ever written over, also where the last id is lost.
local function draw_ids(count, floor)
  local known = tonumber(try('GET', LAST_ID) or '')
  if known and not (known >= 0 and known <= U32) then
    known = nil
  end
  if count == 0 then
    return math.max(known or 0, floor) + 1
  end
  local last = math.max(known or highest_id(), floor)
  if not are_free(last, count) then
    last = math.max(last, highest_id())
    if not are_free(last, count) then
      error('tasks have ids above the last id', 0)
    end
  end
  if last + count > U32 then
    return nil
  end
  call('SET', LAST_ID, format('%d', last + count))
  return last + 1
end

local function insert_one(task, id)
  local rest = task.rest
  local priority, delay = struct.unpack('>I4I4', rest)
  if task.flags % (2 * INHERITS) >= INHERITS then
    priority = task.parent_priority
    rest = struct.pack('>I4', priority) .. sub(rest, 5)
  end
  local body = struct.pack('>I4', now) .. rest
  local lane = lane_of(body)
  if delay > 0 then
    enter(id, 'D:' .. lane, delay)
    later('HSET', HOLD, id, hold_of('(delay)', delay))
  else
    enter(id, 'R:' .. lane, priority)
  end
  later('HSET', BODY, id, body)
  later('ZADD', ACTIVE, priority, id)
  if task.payload then
    later('HSET', DATA, id, task.payload)
  end
  if task.key then
    later('HSET', KNOWN_KEYS, task.key, id)
  end
  return body
end

-- Insert each task (stored by `write`). Out: the first id of the new ones, and for each task that is not the next of
-- these: its number, the id it is answered with, and the head of that body. Nil: no ids left, and nothing happened.
local function insert(tasks, floor)
  local known, fresh, seen = known_keys(tasks), 0, {}
  for _, task in ipairs(tasks) do
    if not task.key or not (known[task.key] or seen[task.key]) then
      fresh = fresh + 1
    end
    if task.key then
      seen[task.key] = true
    end
  end
  local first = draw_ids(fresh, floor)
  if not first then
    return nil
  end
  local next_id, answers, bodies = first, {}, {}
  for number, task in ipairs(tasks) do
    local id = task.key and known[task.key]
    if id then
      answers[#answers + 1] = format('%d', number - 1)
      answers[#answers + 1] = id
      answers[#answers + 1] = head_of(bodies[id] or call('HGET', BODY, id))
    else
      id = format('%010d', next_id)
      next_id = next_id + 1
      local body = insert_one(task, id)
      if task.key then
        known[task.key], bodies[id] = id, body
      end
    end
  end
  return format('%010d', first), answers
end
