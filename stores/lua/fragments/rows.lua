-- Rows: read whole, changed, and written back together with every index they stand in.
local MAX_HISTORY = 25

-- An active row from its parts.
local function active_row(id, body, hold, state)
  local row = { id = id, body = body, active = true, had_hold = hold and true, had_state = state }
  read_hold(row, hold)
  read_state(row, state)
  row.lane = lane_of(body)
  row.was, row.was_score = place_of(row.owner, row.expires, row.lane, row.priority)
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
    if is_task(id, bodies[at]) then
      local row
      local ended = sound_end(ends[at], bodies[at])
      if ended then
        row = { id = id, body = bodies[at], ended = ended, was_ended = true }
        read_ended(row, ended)
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
local pending = { ZREM = {}, HDEL = {}, SREM = {}, ZADD = {}, HSET = {}, SADD = {}, RPUSH = {} }
local TYPES = {
  ZREM = 'zset', ZADD = 'zset', HDEL = 'hash', HSET = 'hash', SREM = 'set', SADD = 'set', RPUSH = 'list',
}

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
  if state ~= (row.had_state or new_state(row.body)) then
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

-- Whether there is anything to write. Ends the script where a key is not what it must be, so all is written or nothing.
local function expect_types()
  local seen = {}
  for command, keys in pairs(pending) do
    for key in pairs(keys) do
      if not seen[key] then
        seen[key] = true
        expect(key, TYPES[command])
      end
    end
  end
  return next(seen) ~= nil
end

-- Store every change. It goes through on a full server too: tasks are refused where they draw their ids.
local function write()
  for _, row in ipairs(changed) do
    if row.active then
      change_active(row)
    else
      change_ended(row)
    end
  end
  watch(pending.ZREM)
  watch(pending.ZADD, true)
  if not expect_types() then
    return
  end
  go_on_when_full()
  flush('ZREM')
  flush('HDEL')
  flush('SREM')
  flush('ZADD')
  flush('HSET')
  flush('SADD')
  flush('RPUSH')
  follow_heads()
  for history in pairs(pending.RPUSH) do
    call('LTRIM', history, -MAX_HISTORY, -1)
  end
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
