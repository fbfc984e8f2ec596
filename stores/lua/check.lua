-- Compares tasks with the indexes they stand in, and (where asked) mends what differs. use: base layout heads rows orders
--
-- In: now, 1 to mend, a part of the queue, and some of its members.
-- Out: for each difference its name and the member.
-- What a task is stands in the hashes body, hold, state and ended. Everything else follows from them: `follow` says
-- where an id must stand, and the two checks compare, from the task to the indexes and from an index to the task.
local mends, part, members = ARGV[2] == '1', ARGV[3], { unpack(ARGV, 4) }
local TYPES = {
  body = 'hash', data = 'hash', hold = 'hash', state = 'hash', ended = 'hash', keys = 'hash', events = 'hash',
  orders = 'hash', handed = 'hash',
  active = 'zset', archive = 'zset', over = 'zset', event_times = 'zset', lanes = 'zset',
  odd = 'set', failing = 'set', pauses = 'set',
  last_id = 'string', version = 'string', quiet = 'string',
}
local out = {}

-- Note a difference; whether to mend it.
local function differs(name, member)
  out[#out + 1] = name
  out[#out + 1] = member
  return mends
end

-- What cannot be mended is kept under another name, where it is in nobody's way.
local function set_aside(name, id, value)
  if value then
    call('HSET', P .. 'damaged:' .. name, id, value)
  end
end

local function check_type(name)
  local kind = TYPES[name] or ((is_place(name) or sub(name, 1, 6) == 'heads:') and 'zset') or (sub(name, 1, 8) == 'history:' and 'list')
    or (sub(name, 1, 7) == 'caller:' and 'hash')
  local found = call('TYPE', P .. name).ok
  if kind and found ~= 'none' and found ~= kind and differs('holds a ' .. found .. ' and should hold a ' .. kind, name) then
    call('RENAME', P .. name, P .. 'damaged:' .. name .. ':' .. format('%d', now))
  end
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
    watch({ [index] = { score, id } }, score)
    if score then
      call('ZADD', index, score, id)
    else
      call('ZREM', index, id)
    end
    follow_heads()
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
  local rest = read_rest(row.body)
  if not rest then
    differs('has damaged names', id)
  end
  local key = rest and rest[3] or ''
  if key ~= '' and not call('HGET', KNOWN_KEYS, key) and differs('is missing in keys', id) then
    call('HSET', KNOWN_KEYS, key, id)
  end
  if tonumber(id) > (tonumber(call('GET', LAST_ID) or 0) or U32) and differs('is above the last id', id) then
    call('SET', LAST_ID, tonumber(id))
  end
end

-- Whether the body is a task's; what is not is no task from now on.
local function check_body(id, body)
  if is_task(id, body) and tonumber(id) <= U32 then
    return true
  end
  if body and differs('is damaged beyond repair', id) then
    set_aside('body', id, body)
    set_aside('data', id, call('HGET', DATA, id))
    call('HDEL', BODY, id)
  end
  return false
end

-- A task that stands only where ended ones do has ended, though nobody knows how. False: then it has no sound end now.
local function check_end(id, body)
  local ended, over = call('HGET', ENDED, id), tonumber(call('ZSCORE', OVER, id) or '')
  local lost = not ended and not call('ZSCORE', ACTIVE, id) and (over or call('ZSCORE', ARCHIVE, id))
  if not lost and (not ended or is_end(ended)) then
    return true
  end
  if not differs(lost and 'has lost its end' or 'has a damaged end', id) then
    return false
  end
  call('HSET', ENDED, id, unknown_end(body, math.max(0, math.min(over or now, U32))))
  return true
end

local function check_parts(id)
  local state, hold, row = call('HGET', STATE, id), call('HGET', HOLD, id), {}
  if state and not sound_state(state) and differs('has a damaged state', id) then
    call('HDEL', STATE, id)
  end
  read_hold(row, hold)
  local sound = hold_of(row.owner, row.expires)
  if hold and hold ~= sound and differs('has a damaged hold', id) then
    call('HDEL', HOLD, id)
    if sound ~= '' then
      call('HSET', HOLD, id, sound)
    end
  end
end

local function check_task(id)
  local body = call('HGET', BODY, id)
  if check_body(id, body) then
    if not check_end(id, body) then
      return
    end
    if call('HEXISTS', ENDED, id) == 0 then
      check_parts(id)
    end
  end
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
    watch({ [P .. place] = true })
    call('ZREM', P .. place, id)
    follow_heads()
  end
end

-- Whether a place, or the heads of a queue, is known by its first row in the set above it.
local function check_first(name)
  local kind, queue, above, own
  if is_place(name) then
    kind, queue, own = parts_of(name)
    above = heads_key(kind, queue)
  else
    kind, own = queue_of(name)
    above = kind and heads_key(kind)
  end
  local first = above and first_of(P .. name)
  if not (first and first.member) then
    return
  end
  local is_missing = is_place(name) and not call('ZSCORE', LANES, lane_member(queue, own))
  if is_missing and differs('is missing in lanes', name) then
    call('ZADD', LANES, 0, lane_member(queue, own))
  end
  local head = kind == 'W' and BOUND .. own or head_for(first.member, own)
  local score = call('ZSCORE', above, head)
  local right = score == first.score or (kind == 'W' and score and tonumber(score) <= tonumber(first.score))
  local what = score and 'has another score in ' or 'is missing in '
  if not right and differs(what .. sub(above, #P + 1), name) then
    -- a bound is lowered all the way up by what enters
    watch({ [above] = true, [P .. name] = { first.score, first.member } }, true)
    call('ZADD', above, first.score, head)
    follow_heads()
  end
end

-- Whether a head is the first row of what it names. A bound names no row, and what it names may be empty since.
local function check_head(name, head)
  local kind, queue = queue_of(name)
  if not kind then
    kind = sub(name, 7)
  end
  local below = queue and P .. kind .. ':' .. queue .. '/' .. name_of(head) or heads_key(kind, name_of(head))
  local first = first_of(below)
  local right = first.member and head_for(first.member, name_of(head)) == head
  if kind == 'W' then
    right = sub(head, 1, ID_SIZE) == BOUND
  end
  if call('ZSCORE', P .. name, head) and not right and differs('stands in ' .. name, head) then
    watch({ [P .. name] = true })
    call('ZREM', P .. name, head)
    follow_heads()
  end
end

-- Whether a lane holds rows, or may still be thought to.
local function check_lane(member)
  local class, queue = string.match(member, '^(.*)%z(.*)$')
  local known = class and (holds_rows(queue, class) or call('ZSCORE', heads_key('W', queue), BOUND .. class))
  local score = call('ZSCORE', LANES, member)
  if score and not known and differs('stands in lanes', member) then
    call('ZREM', LANES, member)
  elseif known and score and tonumber(score) ~= 0 and differs('has another score in lanes', member) then
    call('ZADD', LANES, 0, member)
  end
end

local function check_key(key)
  local id = call('HGET', KNOWN_KEYS, key)
  local body = id and call('HGET', BODY, id)
  local is_its = id and is_task(id, body) and rest_of(body)[3] == key
  if id and not is_its and differs('key of no task', key) then
    call('HDEL', KNOWN_KEYS, key)
  end
end

local function check_event(event_id)
  local answer = call('HGET', EVENTS, event_id)
  local size = answer and #answer >= 2 and byte(answer, 1) * 256 + byte(answer, 2)
  local good = size and is_task(sub(answer, size + 3, size + 12), sub(answer, size + 13))
  if answer and not good then
    if differs('event with a damaged answer', event_id) then
      set_aside('events', event_id, answer)
      call('HDEL', EVENTS, event_id)
      call('ZREM', EVENT_TIMES, event_id)
    end
  elseif answer and not call('ZSCORE', EVENT_TIMES, event_id)
    and differs('event without a time', event_id) then
    call('ZADD', EVENT_TIMES, now, event_id)
  end
end

local function check_event_time(event_id)
  if call('HEXISTS', EVENTS, event_id) == 0 and differs('time of no event', event_id) then
    call('ZREM', EVENT_TIMES, event_id)
  end
end

local function check_pause(pause)
  local is_pause = pause == 'all:' or string.find(pause, '^class:') or string.find(pause, '^queue:')
  if not is_pause and differs('is no pause', pause) then
    call('SREM', PAUSES, pause)
  end
end

-- Without a last id the next one is found above all tasks (insert.lua).
local function check_last_id(name)
  local last = call('GET', LAST_ID)
  local number = last and tonumber(last)
  if last and not (number and number >= 0 and number <= U32 and not string.find(last, '%D'))
    and differs('is no task id', name) then
    call('DEL', LAST_ID)
  end
end

-- The kept answers of one process to its enqueues.
local function check_caller(name)
  local answers = call('HGETALL', P .. name)
  for at = 1, #answers, 2 do
    if not kept_answer(answers[at + 1]) and differs('has a damaged answer', name) then
      call('HDEL', P .. name, answers[at])
    end
  end
end

-- What an order was given may have ended since: only what is none at all differs.
local function check_order(owner)
  local order = call('HGET', ORDERS, owner)
  if order and not read_order(owner, order) and differs('is no order', owner) then
    call('HDEL', ORDERS, owner)
  end
end

local function check_handed(owner)
  local entry = call('HGET', HANDED, owner)
  if entry and not read_handed(entry) and differs('was handed no task', owner) then
    call('HDEL', HANDED, owner)
  end
end

local function check_history(id)
  if call('HEXISTS', BODY, id) == 0 and call('EXISTS', P .. 'history:' .. id) == 1
    and differs('history of no task', id) then
    call('DEL', P .. 'history:' .. id)
  end
end

local checks = {
  type = check_type, task = check_task, key = check_key, event = check_event, event_time = check_event_time,
  history = check_history, pause = check_pause, first = check_first, last_id = check_last_id,
  lane = check_lane, caller = check_caller, order = check_order, handed = check_handed,
}
if mends then
  go_on_when_full()
end
for _, member in ipairs(members) do
  if checks[part] then
    checks[part](member)
  elseif sub(part, 1, 6) == 'heads:' then
    check_head(part, member)
  else
    check_place(part, member)
  end
end
return out
