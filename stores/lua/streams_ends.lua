-- Where the streams end. use: base streams
--
-- In: names, group, queues that may have no entry yet. Out: queue and last entry number of each, deleted ones included.
local queues = set_of(known_queues())
for place = 3, #ARGV do
  queues[ARGV[place]] = true
end
local answer = {}
for queue in pairs(queues) do
  local facts = redis.pcall('XINFO', 'STREAM', P .. queue)
  answer[#answer + 1] = queue
  answer[#answer + 1] = facts.err and '0-0' or field_of(facts, 'last-generated-id')
end
return answer
