-- Standing orders: a worker that found too little waits under the name of that call, and the next task that comes alone
-- is given to it at the moment it is enqueued (enqueue.lua).
--
--   orders   owner -> until when, seconds of the lease, patience, channel and token of the worker, and which rows it wants
--   handed   owner -> the task that its order was given, and the end of that lease; until the worker has asked
--
-- Neither is an index, and both may be lost: an order lives for seconds, and a task that was handed stands in `hold`.
-- Orders go to no replica and no log of the server: idle workers renew them each second.
local ORDERS, HANDED = P .. 'orders', P .. 'handed'
local ORDER_SECONDS = 3
local LONGEST_LEASE = 604800

-- Run this without telling replicas and the log of it. What the server refuses here is none of anybody's concern.
local function unlogged(change)
  pcall(redis.set_repl, redis.REPL_NONE)
  change()
  pcall(redis.set_repl, redis.REPL_ALL)
end

-- Names as one text, in which a name is found at once. No name has a NUL.
local function names_text(names)
  return names and '\0' .. table.concat(names, '\0') .. '\0'
end

local function is_among(text, name)
  return string.find(text, '\0' .. name .. '\0', 1, true) ~= nil
end

local function is_text_or_false(value)
  return value == false or type(value) == 'string'
end

-- An order of one of our workers; nil: it is none.
local function read_order(owner, packed)
  local good, parts = pcall(cmsgpack.unpack, packed)
  if not good or sub(owner, 1, 3) ~= 'qr:' or type(parts) ~= 'table' or type(parts[1]) ~= 'number' or type(parts[2]) ~= 'number'
    or type(parts[3]) ~= 'number' or type(parts[4]) ~= 'string' or type(parts[5]) ~= 'string'
    or not is_text_or_false(parts[6]) or type(parts[7]) ~= 'string' or not is_text_or_false(parts[8])
    or parts[2] < 1 or parts[2] > LONGEST_LEASE then
    return nil
  end
  return {
    until_ = parts[1], seconds = parts[2], patience = parts[3], channel = parts[4], token = parts[5],
    classes = parts[6], without_classes = parts[7], queues = parts[8],
  }
end

local function is_over(order)
  return order.until_ < now or order.until_ > now + ORDER_SECONDS
end

-- Whether an order wants the rows of this lane.
local function wants(order, queue, class)
  return (not order.classes or is_among(order.classes, class)) and not is_among(order.without_classes, class)
    and (not order.queues or is_among(order.queues, queue))
end

-- The task that an owner was handed, and the end of that lease; nil: it is none.
local function read_handed(entry)
  local id, expires = string.match(entry, '^(%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d%d)$')
  return id, tonumber(expires)
end
