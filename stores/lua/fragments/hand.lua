-- Hands the task of an enqueue to a worker that waits (orders.lua), before the rest of the script is read.
--
-- An idle worker's pick-up waits for this, and a server that was idle takes long for everything it has not done lately.
-- So it writes the few entries of a row that one of our workers holds by itself (rows.lua has them for all rows), and
-- leaves whatever is not simple to the script: no rule stands here alone.
local caller, slot, sequence = P .. 'caller:' .. ARGV[3], ARGV[4], tonumber(ARGV[5])
local ANSWER_SECONDS, SAMPLE = 600, 8

-- Owners of orders that are met and can be filled no more.
local over = {}

local function end_orders(owners)
  if #owners > 0 then
    unlogged(function()
      try('HDEL', ORDERS, unpack(owners))
    end)
  end
end

-- Whether the call brings one task: new for certain, wanted now, and all of it in its body (redis_rows.new_task).
local function is_plain(rest)
  return ARGV[6] == '1' and byte(rest, 9) == 0 and sub(rest, 5, 8) == '\0\0\0\0'
end

-- Whether this call was answered before, or nobody knows.
local function may_be_known()
  local kept = call('HGET', caller, slot)
  local good, answer = pcall(cmsgpack.unpack, kept or '')
  return kept and not (good and type(answer) == 'table' and type(answer[1]) == 'number' and answer[1] < sequence)
end

-- The next id; nil: there is more to look at.
local function next_id()
  local known = try('GET', LAST_ID)
  local last = tonumber(known or known == false and call('EXISTS', ACTIVE, ARCHIVE) == 0 and '0' or '')
  if not last or last < 0 or last ~= math.floor(last) then
    return nil
  end
  last = math.max(last, tonumber(ARGV[2]))
  if last >= U32 then
    return nil
  end
  local id = format('%010d', last + 1)
  return call('HEXISTS', BODY, id) == 0 and id or nil
end

-- Whether some row waits that a lease would look at. A bound may say so in vain; then the task goes the other way.
local function is_due(patience)
  local waiting = call('EXISTS', heads_key('D'), heads_key('B'), heads_key('H')) > 0
  for _, kind in ipairs(waiting and { 'D', 'B', 'H', 'W' } or { 'W' }) do
    local found = try('ZCOUNT', heads_key(kind), '-inf', format('%d', now - grace_of(kind, patience)))
    if found ~= 0 then
      return true
    end
  end
  return false
end

local function has_listener(channel)
  local found = try('PUBSUB', 'NUMSUB', channel)
  return found and (tonumber(found[2]) or 0) > 0
end

-- An order for this lane, and its owner; nil: none. It looks at a few of them, each time at others.
local function order_for(found, queue, class)
  for at = 1, #found, 2 do
    local order = read_order(found[at], found[at + 1])
    if not order or is_over(order) then
      over[#over + 1] = found[at]
    elseif wants(order, queue, class) then
      if has_listener(order.channel) then
        return not is_due(order.patience) and order or nil, found[at]
      end
      over[#over + 1] = found[at]
    end
  end
end

-- Write a row that this worker holds. Ends the script before the first write where a key is not what it must be, and
-- with it where the server is full.
local function write_held(id, body, lane, queue, class, owner, expires)
  local place, above = P .. 'W:' .. lane, heads_key('W', queue)
  local is_known = call('ZSCORE', LANES, lane_member(queue, class))
  expect(ACTIVE, 'zset')
  expect(place, 'zset')
  expect(above, 'zset')
  expect(HOLD, 'hash')
  call('SET', LAST_ID, format('%d', tonumber(id)))
  call('HSET', BODY, id, body)
  call('HSET', HOLD, id, format('%010d', expires) .. owner)
  call('ZADD', ACTIVE, struct.unpack('>I4', body, 5), id)
  call('ZADD', place, expires, id)
  call('ZADD', above, 'LT', expires, BOUND .. class)
  call('ZADD', heads_key('W'), 'LT', expires, BOUND .. queue)
  if not is_known then
    call('ZADD', LANES, 0, lane_member(queue, class))
  end
  call('HSET', HANDED, owner, id .. format('%010d', expires))
end

-- The answer of the call; nil: the task was not handed.
local function hand(rest)
  local found = is_plain(rest) and try('HRANDFIELD', ORDERS, SAMPLE, 'WITHVALUES')
  if not found or #found == 0 or call('EXISTS', PAUSES, heads_key('R')) > 0 or not try('HLEN', HANDED) then
    return nil
  end
  local lane = sub(rest, 14, 13 + byte(rest, 10) * 256 + byte(rest, 11))
  local queue, class = string.match(lane, '^([^/]*)/(.*)$')
  local id = not may_be_known() and next_id()
  local order, owner
  if id then
    order, owner = order_for(found, queue, class)
  end
  if not order then
    return nil
  end
  local expires, body = now + order.seconds, struct.pack('>I4', now) .. rest
  write_held(id, body, lane, queue, class, owner, expires)
  call('HSET', caller, slot, cmsgpack.pack({ sequence, now, id, {} }))
  call('EXPIRE', caller, ANSWER_SECONDS)
  over[#over + 1] = owner
  end_orders(over)
  local told
  unlogged(function()
    told = try('PUBLISH', order.channel, order.token .. id .. format('%010d', expires) .. body)
  end)
  if (told or 0) == 0 then
    ring()
  end
  return { now, id, {} }
end

local handed = hand(ARGV[7])
if handed then
  return handed
end
