-- Deletes archived tasks whose retention is over, with all that belongs to them, and old events. use: base layout orders
--
-- In: now, limit, seconds to keep tasks and events (empty: for ever). Out: tasks deleted, 1 where more is left.
local limit, keep_tasks, keep_events = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local more = 0

-- The first members of a sorted set by time that are so old, up to the limit.
local function old_ones(key, keep)
  if not keep then
    return {}
  end
  local found = call('ZRANGEBYSCORE', key, '-inf', format('%d', now - keep), 'LIMIT', 0, limit + 1)
  if #found > limit then
    found[#found] = nil
    more = 1
  end
  return found
end

local function delete_tasks(ids)
  local keys, histories = {}, {}
  for _, key in ipairs({ KNOWN_KEYS, BODY, DATA, ENDED }) do
    expect(key, 'hash')
  end
  expect(ARCHIVE, 'zset')
  for at, body in ipairs(fetch('HMGET', BODY, ids)) do
    histories[at] = P .. 'history:' .. ids[at]
    if is_task(ids[at], body) and byte(body, 13) % (2 * KEYED) >= KEYED then
      local key = rest_of(body)[3]
      if call('HGET', KNOWN_KEYS, key) == ids[at] then
        keys[#keys + 1] = key
      end
    end
  end
  spread('HDEL', KNOWN_KEYS, keys)
  for first = 1, #histories, STEP do
    call('UNLINK', unpack(histories, first, math.min(first + STEP - 1, #histories)))
  end
  for _, key in ipairs({ BODY, DATA, ENDED }) do
    spread('HDEL', key, ids)
  end
  spread('ZREM', ARCHIVE, ids)
  spread('ZREM', OVER, ids)
end

-- Forget orders of workers that are gone, and what they were handed: it comes due like all that they had.
local function forget_orders()
  local function drop(key, is_old)
    local found, old = try('HRANDFIELD', key, limit, 'WITHVALUES') or {}, {}
    for at = 1, #found, 2 do
      if is_old(found[at], found[at + 1]) then
        old[#old + 1] = found[at]
      end
    end
    spread('HDEL', key, old)
  end
  unlogged(function()
    drop(ORDERS, function(owner, packed)
      local order = read_order(owner, packed)
      return not order or is_over(order)
    end)
  end)
  drop(HANDED, function(_, entry)
    local _, expires = read_handed(entry)
    return not expires or expires < now
  end)
end

local tasks, events = old_ones(OVER, keep_tasks), old_ones(EVENT_TIMES, keep_events)
expect(EVENTS, 'hash')
delete_tasks(tasks)
spread('HDEL', EVENTS, events)
spread('ZREM', EVENT_TIMES, events)
forget_orders()
return { #tasks, more }
