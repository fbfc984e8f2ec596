-- Claims tasks by priority and id: KEYS are ready, body, owner, leased; in: how many, owner, seconds. Out: ids, bodies.
local popped = redis.call('ZPOPMIN', KEYS[1], ARGV[1])
if #popped == 0 then
  return { {}, {} }
end
local expires = redis.call('TIME')[1] + ARGV[3]
local ids, owners, leases = {}, {}, {}
for at = 1, #popped, 2 do
  local id = popped[at]
  ids[#ids + 1] = id
  owners[at], owners[at + 1] = id, ARGV[2]
  leases[at], leases[at + 1] = expires, id
end
redis.call('HSET', KEYS[3], unpack(owners))
redis.call('ZADD', KEYS[4], unpack(leases))
return { ids, redis.call('HMGET', KEYS[2], unpack(ids)) }
