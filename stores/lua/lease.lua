-- Takes rows, phase by phase, and answers them with their payloads. use: base layout heads rows rules lanes orders
--
-- In: now, owner, limit, seconds, patience, max_lost, 1 for due rows first, most bytes of payload, and (msgpack) which
-- rows: classes, classes left out, queues, ids, ids left out; false: all. Then the owners whose orders end now, owners
-- whose orders have ended, and channel and token of the order that shall stand where the reply is short (false: none).
-- Out: the expiry, all ids as one text, their bodies; then, each after its number in that order: states, expiries
-- that differ, payloads that stand apart, owners that differ. Nil: nothing was taken, and after more such calls there
-- may be something.
local owner, limit, expires = ARGV[2], tonumber(ARGV[3]), now + tonumber(ARGV[4])
local patience, max_lost, due_first = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
local max_bytes = tonumber(ARGV[8])
local classes, without_classes, queues, only, without, recalled, ended, order = unpack(cmsgpack.unpack(ARGV[9]))
local WINDOW = 1000

local filter = lane_filter(classes, without_classes, queues)
local skip = set_of(without)

-- Ids by priority then id. Few priorities and plain numbers, which Lua sorts fastest.
local function by_priority(ids, priorities)
  local groups, levels = {}, {}
  for at, id in ipairs(ids) do
    local priority = tonumber(priorities[at])
    if priority and is_id(id) then
      if not groups[priority] then
        groups[priority] = {}
        levels[#levels + 1] = priority
      end
      table.insert(groups[priority], tonumber(id))
    end
  end
  table.sort(levels)
  local sorted = {}
  for _, priority in ipairs(levels) do
    table.sort(groups[priority])
    for _, id in ipairs(groups[priority]) do
      sorted[#sorted + 1] = format('%010d', id)
    end
  end
  return sorted
end

local stands = {}

-- An index entry without a task is taken out, not handed out.
local function drop(id, place)
  if place and not is_task(id, call('HGET', BODY, id)) then
    later('ZREM', P .. place, id)
  end
end

local function due_ids()
  local bounds = {}
  for _, kind in ipairs({ 'D', 'B', 'H', 'W' }) do
    bounds[kind] = now - grace_of(kind, patience)
  end
  local ids, places = merge(bounds, WINDOW, filter, skip)
  local priorities = fetch('ZMSCORE', ACTIVE, ids)
  for at, priority in ipairs(priorities) do
    stands[ids[at]] = places[at]
    if not priority or not is_id(ids[at]) then
      drop(ids[at], places[at])
    end
  end
  return by_priority(ids, priorities)
end

-- The two phases of named ids: they are few enough to be read whole.
local function named_ids()
  local wanted, fresh, fresh_priorities, due = {}, {}, {}, {}
  for _, id in ipairs(only) do
    if not skip[id] then
      wanted[#wanted + 1] = id
    end
  end
  local _, rows = load(wanted)
  for _, row in ipairs(rows) do
    if row.active and row.was and filter.lane(row.lane) then
      local kind = sub(row.was, 1, 1)
      if kind == 'R' then
        fresh[#fresh + 1] = row.id
        fresh_priorities[#fresh_priorities + 1] = row.priority
      elseif row.expires <= now - grace_of(kind, patience) then
        due[#due + 1] = row
      end
    end
  end
  table.sort(due, function(one, other)
    return one.expires < other.expires or (one.expires == other.expires and one.id < other.id)
  end)
  local ids, priorities = {}, {}
  for at = 1, math.min(#due, WINDOW) do
    ids[at], priorities[at] = due[at].id, due[at].priority
  end
  return by_priority(fresh, fresh_priorities), by_priority(ids, priorities)
end

-- ---- taking

local ids, bodies, states, expiries, payloads, apart, owners = {}, {}, {}, {}, {}, {}, {}
local bytes, full = 0, false
local kind_taken = is_worker(owner) and 'W:' or 'H:'

-- Count the bytes of one more payload; false: they are too many, and nothing more is taken.
local function fits(id, body)
  local size
  if byte(body, 13) % 2 == APART then
    size = call('HSTRLEN', DATA, id)
  else
    size = #body - head_size(body)
  end
  full = #ids > 0 and bytes + size > max_bytes
  bytes = bytes + size
  return not full
end

local function take(id, body, state, until_)
  local number = #ids + 1
  ids[number], bodies[number] = id, body
  if state then
    states[#states + 1] = format('%d', number - 1)
    states[#states + 1] = state
  end
  if until_ ~= expires then
    expiries[#expiries + 1] = format('%d', number - 1)
    expiries[#expiries + 1] = format('%d', until_)
  end
  if byte(body, 13) % 2 == APART then
    apart[#apart + 1] = number
  end
end

-- A row that nobody ever had, or that was given back untouched: nothing of it but its place changes.
local function take_fresh(id, body, state)
  local until_ = state and first_unspent(sub(state, 21), owner, expires) or expires
  leave(id, 'R:' .. lane_of(body))
  enter(id, kind_taken .. lane_of(body), until_)
  later('HSET', HOLD, id, hold_of(owner, until_))
  take(id, body, state, until_)
end

-- A row whose time has come. One of our workers that lets a lease run out has lost the run, and some tasks kill theirs.
local function take_due(row)
  local lost = is_worker(row.owner)
  if lost then
    row.lost = row.lost + 1
    if row.lost >= max_lost then
      remember(row, 'lost', '0', 'worker lost', '')
      archive(row, 1, '0')
      return
    end
  end
  if not fits(row.id, row.body) then
    return
  end
  if lost then
    remember(row, 'lost', '0', 'worker lost', '')
  end
  row.owner, row.expires = owner, first_unspent(row.spent, owner, expires)
  put(row)
  local state = state_of(row)
  take(row.id, row.body, (row.had_state or lost) and state, row.expires)
end

-- Take from rows in their order until a bound is met. `fresh`: the places of ready ones; nil: due ones.
local function fill(candidates, fresh)
  local at = 1
  while at <= #candidates and #ids < limit and not full do
    local slice = {}
    for number = at, math.min(at + limit - #ids - 1, #candidates) do
      slice[#slice + 1] = candidates[number]
    end
    at = at + #slice
    local found, held = fetch('HMGET', BODY, slice), fresh and {} or fetch('HMGET', HOLD, slice)
    local changed_states = fetch('HMGET', STATE, slice)
    for number, id in ipairs(slice) do
      local body = found[number]
      if full then
        break
      elseif not is_task(id, body) then
        drop(id, fresh and fresh[at - #slice + number - 1] or stands[id])
      elseif not fresh then
        take_due(active_row(id, body, held[number], changed_states[number]))
      elseif fits(id, body) then
        take_fresh(id, body, sound_state(changed_states[number]))
      end
    end
  end
end

-- Owners of orders that have ended, of whose tasks the server still keeps a note.
local noted = {}

-- The ids that these owners were handed, each at its number; none: an empty text.
local function handed_to(names)
  local handed = {}
  for at, entry in ipairs(#names > 0 and try('HMGET', HANDED, unpack(names)) or {}) do
    handed[at] = entry and read_handed(entry) or ''
    if entry then
      proven[HANDED] = true
      noted[#noted + 1] = names[at]
    end
  end
  return handed
end

-- What the owners of the orders that end now were handed, and still hold. No bound keeps it back: they have it.
local function take_handed()
  local handed = handed_to(recalled)
  local rows = load(handed)
  for at, id in ipairs(handed) do
    local row = rows[id]
    if row and row.active and row.owner == recalled[at] and row.expires then
      bytes, skip[id] = bytes + #row.body - head_size(row.body), true
      take(id, row.body, row.had_state and state_of(row), row.expires)
      owners[#owners + 1] = format('%d', #ids - 1)
      owners[#owners + 1] = row.owner
    end
  end
  handed_to(ended)
end

-- End the orders of former calls, and have one stand for this call where it is short.
local function stand()
  if #recalled > 0 then
    try('HDEL', ORDERS, unpack(recalled))
  end
  if order and is_worker(owner) and #ids < limit and not full then
    local packed = cmsgpack.pack({
      now + ORDER_SECONDS, expires - now, patience, order[1], order[2],
      names_text(classes), names_text(without_classes), names_text(queues),
    })
    try('HSET', ORDERS, owner, packed)
  end
end

take_handed()
local room = limit - #ids
if room <= 0 then
  full = true
elseif only then
  local fresh, due = named_ids()
  if due_first then
    fill(due)
  end
  fill(fresh, {})
  if not due_first then
    fill(due)
  end
elseif due_first then
  local due = due_ids()
  if raised >= RAISES then
    write()
    return nil
  end
  fill(due)
  if #ids < limit and not full then
    fill(merge({ R = U32 }, limit - #ids, filter, skip))
  end
else
  local fresh, places = merge({ R = U32 }, room, filter, skip)
  local due = #fresh < room and due_ids()
  if raised >= RAISES then
    write()
    return nil
  end
  fill(fresh, places)
  if #ids < limit and not full then
    fill(due or due_ids())
  end
end
for _, name in ipairs(noted) do
  later('HDEL', HANDED, name)
end
write()
if #recalled > 0 or order then
  unlogged(stand)
end

local taken_apart = {}
for at, number in ipairs(apart) do
  taken_apart[at] = ids[number]
end
for at, payload in ipairs(fetch('HMGET', DATA, taken_apart)) do
  payloads[#payloads + 1] = format('%d', apart[at] - 1)
  payloads[#payloads + 1] = payload
end
return { format('%d', expires), table.concat(ids), bodies, states, expiries, payloads, owners }
