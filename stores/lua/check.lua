-- Compares tasks with the indexes they stand in, and (where asked) mends what differs. use: base layout rows
--
-- In: now, 1 to mend, a part of the queue, and (msgpack) some of its members.
-- Out: for each difference its name and the member.
-- What a task is stands in the hashes body, hold, state and ended. Everything else follows from them: `follow` says
-- where an id must stand, and the two checks compare, from the task to the indexes and from an index to the task.
local mends, part, members = ARGV[2] == '1', ARGV[3], cmsgpack.unpack(ARGV[4])
local KINDS = { 'R', 'D', 'B', 'H', 'W' }
local out = {}

-- Note a difference; whether to mend it.
local function differs(name, member)
  out[#out + 1] = name
  out[#out + 1] = member
  return mends
end

-- Where this id must stand: index -> score (true in plain sets). Nil: there is no such task.
local function follow(id)
  local rows = load({ id })
  local row = rows[id]
  if not row then
    return nil
  end
  if not row.active then
    return { [ARCHIVE] = tonumber(id), [OVER] = row.ended_at }, row
  end
  local places = { [ACTIVE] = row.priority }
  places[row.was and P .. row.was or ODD] = row.was_score or true
  if row.failures > 0 then
    places[FAILING] = true
  end
  return places, row
end

local function check_sorted(id, index, score)
  local found = tonumber(call('ZSCORE', index, id))
  if found == score then
    return
  end
  local name = not score and 'stands in ' or not found and 'is missing in ' or 'has another score in '
  if differs(name .. sub(index, #P + 1), id) then
    if score then
      call('ZADD', index, score, id)
    else
      call('ZREM', index, id)
    end
  end
end

local function check_plain(id, index, wanted)
  local found = call('SISMEMBER', index, id) == 1
  if found ~= (wanted or false) and differs((wanted and 'is missing in ' or 'stands in ') .. sub(index, #P + 1), id) then
    call(wanted and 'SADD' or 'SREM', index, id)
  end
end

local function check_hash(id, hash, allowed)
  if not allowed and call('HEXISTS', hash, id) == 1 and differs('is left over in ' .. sub(hash, #P + 1), id) then
    call('HDEL', hash, id)
  end
end

local function check_row(id, row)
  local apart = byte(row.body, 13) % 2 == APART
  if apart and call('HEXISTS', DATA, id) == 0 then
    differs('has lost its payload', id)
  end
  check_hash(id, DATA, apart)
  check_hash(id, HOLD, row.active)
  check_hash(id, STATE, row.active)
  local key = rest_of(row.body)[3]
  if key ~= '' and not call('HGET', KNOWN_KEYS, key) and differs('is missing in keys', id) then
    call('HSET', KNOWN_KEYS, key, id)
  end
  if row.active and row.was and call('SISMEMBER', PLACES, row.was) == 0 and differs('its place is unknown', id) then
    call('SADD', PLACES, row.was)
  end
  if tonumber(id) > tonumber(call('GET', LAST_ID) or 0) and differs('is above the last id', id) then
    call('SET', LAST_ID, tonumber(id))
  end
end

local function check_task(id)
  local wanted, row = follow(id)
  for _, index in ipairs({ ACTIVE, ARCHIVE, OVER }) do
    check_sorted(id, index, wanted and wanted[index])
  end
  for _, index in ipairs({ ODD, FAILING }) do
    check_plain(id, index, wanted and wanted[index])
  end
  if row then
    for _, kind in ipairs(KINDS) do
      local index = P .. kind .. ':' .. lane_of(row.body)
      check_sorted(id, index, wanted[index])
    end
    check_row(id, row)
  else
    for _, hash in ipairs({ DATA, HOLD, STATE, ENDED }) do
      check_hash(id, hash, false)
    end
  end
end

local function check_place(place, id)
  local wanted = follow(id)
  if call('ZSCORE', P .. place, id) and not (wanted and wanted[P .. place]) and differs('stands in ' .. place, id) then
    call('ZREM', P .. place, id)
  end
end

local function check_key(key)
  local id = call('HGET', KNOWN_KEYS, key)
  if id and call('HEXISTS', BODY, id) == 0 and differs('key of no task', key) then
    call('HDEL', KNOWN_KEYS, key)
  end
end

local function check_event(event_id)
  if call('HEXISTS', EVENTS, event_id) == 1 and not call('ZSCORE', EVENT_TIMES, event_id)
    and differs('event without a time', event_id) then
    call('ZADD', EVENT_TIMES, now, event_id)
  end
end

local function check_history(id)
  if call('HEXISTS', BODY, id) == 0 and call('EXISTS', P .. 'history:' .. id) == 1
    and differs('history of no task', id) then
    call('DEL', P .. 'history:' .. id)
  end
end

local checks = { task = check_task, key = check_key, event = check_event, history = check_history }
for _, member in ipairs(members) do
  if checks[part] then
    checks[part](member)
  else
    check_place(part, member)
  end
end
return out
