-- The filter of lists. An absent part is false and lets everything through.
--
-- As msgpack: classes, queues, states, results, object, container, least and most failures and priority, and since when
-- a row has ended.
local function read_filter(packed)
  local parts = cmsgpack.unpack(packed)
  local function set(part)
    return part and set_of(part)
  end
  return {
    classes = set(parts[1]), queues = set(parts[2]), states = set(parts[3]), results = set(parts[4]),
    object = parts[5], container = parts[6],
    min_failures = parts[7], max_failures = parts[8], min_priority = parts[9], max_priority = parts[10],
    ended_since = parts[11],
  }
end

-- As task.state_of.
local function shown_state(row, patience)
  if PARKED[row.owner] then
    return 'parked'
  end
  if not row.expires then
    if not row.owner then
      return 'ready'
    end
  elseif row.expires <= now - grace_of(sub(place_of(row.owner, row.expires, '', 0), 1, 1), patience) then
    return 'ready'
  end
  return (not row.owner or is_sentinel(row.owner)) and 'waiting' or 'leased'
end

-- Whether a row passes what active and archived rows share.
local function is_wanted(row, filter)
  if filter.classes or filter.queues then
    local lane = lane_of(row.body)
    local slash = string.find(lane, '/', 1, true)
    if filter.classes and not filter.classes[sub(lane, slash + 1)] then
      return false
    end
    if filter.queues and not filter.queues[sub(lane, 1, slash - 1)] then
      return false
    end
  end
  if filter.object or filter.container then
    local rest = rest_of(row.body)
    if (filter.object and rest[1] ~= filter.object) or (filter.container and rest[2] ~= filter.container) then
      return false
    end
  end
  return (not filter.min_failures or row.failures >= filter.min_failures)
    and (not filter.max_failures or row.failures <= filter.max_failures)
    and (not filter.min_priority or row.priority >= filter.min_priority)
    and (not filter.max_priority or row.priority <= filter.max_priority)
end

-- The active rows among these ids that pass, as `id, head, hold, state` each.
local function show_wanted(out, ids, filter, patience)
  local bodies, holds = fetch('HMGET', BODY, ids), fetch('HMGET', HOLD, ids)
  local states, ends = fetch('HMGET', STATE, ids), fetch('HMGET', ENDED, ids)
  for at, id in ipairs(ids) do
    if is_task(id, bodies[at]) and not ends[at] then
      local row = active_row(id, bodies[at], holds[at], states[at])
      if is_wanted(row, filter) and (not filter.states or filter.states[shown_state(row, patience)]) then
        out[#out + 1] = id
        show_active(out, row)
      end
    end
  end
end
