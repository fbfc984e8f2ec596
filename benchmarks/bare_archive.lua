-- Archives tasks of an owner: KEYS are owner, leased, archive, ended; in: owner, result of each, ids. Out: how many.
local owner, result, ids = ARGV[1], ARGV[2], { unpack(ARGV, 3) }
local now = redis.call('TIME')[1]
local held, archived, ended = {}, {}, {}
for at, holder in ipairs(redis.call('HMGET', KEYS[1], unpack(ids))) do
  if holder == owner then
    held[#held + 1] = ids[at]
    archived[#archived + 1] = now
    archived[#archived + 1] = ids[at]
    ended[#ended + 1] = ids[at]
    ended[#ended + 1] = result
  end
end
if #held == 0 then
  return 0
end
redis.call('HDEL', KEYS[1], unpack(held))
redis.call('ZREM', KEYS[2], unpack(held))
redis.call('ZADD', KEYS[3], unpack(archived))
redis.call('HSET', KEYS[4], unpack(ended))
return #held
