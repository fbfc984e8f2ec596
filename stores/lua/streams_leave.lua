-- Ends a consumer that holds nothing. use: base streams
--
-- In: names, group, consumer. What it holds is freed later by somebody else.
for _, queue in ipairs(known_queues()) do
  local pending = redis.pcall('XPENDING', P .. queue, group, '-', '+', 1, ARGV[3])
  if not pending.err and #pending == 0 then
    redis.pcall('XGROUP', 'DELCONSUMER', P .. queue, group, ARGV[3])
  end
end
