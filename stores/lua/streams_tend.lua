-- Frees what dead consumers hold, and looks whether everything is in order. use: base streams
--
-- In: now, group, consumer, milliseconds after which a read entry is read by others, milliseconds after which a silent
--     consumer without entries is forgotten, milliseconds after which a waiting entry is old, how many old ones to name.
-- Out: 1 where the server has forgotten all, 2 where entries are missing, else 0; how many entries were freed; ids of
--      tasks whose entries are old.
--
-- Also freed is what no reader would ever get: an entry that the group has passed without giving it to anybody, as
-- after XGROUP SETID or DELCONSUMER by hand. A freed entry goes to the end of its stream under a new number, and the
-- record decides whether it is still work.
local consumer, idle, dead = ARGV[3], ARGV[4], tonumber(ARGV[5])
local clock = call('TIME')
local horizon = format('%d', clock[1] * 1000 + math.floor(clock[2] / 1000) - tonumber(ARGV[6]))
local freed, old, most = 0, {}, tonumber(ARGV[7])
local MOST_PENDING, MOST_PASSED = 10000, 1000

local function free(queue, entry)
  local found = call('XRANGE', P .. queue, entry, entry)
  local id, class
  if found[1] then
    id, class = task_of(found[1][2])
  end
  drop(queue, entry, id or '')
  if id and not sent_as(id) then
    put(id, queue, class)
    freed = freed + 1
  end
end

-- Whether the number of one entry is larger than that of another. They have more digits than a number of Lua.
local function is_after(one, other)
  local one_time, one_place = string.match(one, '^(%d+)-(%d+)$')
  local other_time, other_place = string.match(other, '^(%d+)-(%d+)$')
  if one_time == other_time then
    one_time, other_time = one_place, other_place
  end
  if #one_time ~= #other_time then
    return #one_time > #other_time
  end
  return one_time > other_time
end

local function free_passed(queue)
  local stream, passed = P .. queue, nil
  for _, facts in ipairs(try('XINFO', 'GROUPS', stream) or {}) do
    if field_of(facts, 'name') == group then
      passed = field_of(facts, 'last-delivered-id')
    end
  end
  if not passed then
    return
  end
  if is_after(passed, field_of(call('XINFO', 'STREAM', stream), 'last-generated-id')) then
    call('XGROUP', 'SETID', stream, group, '$')
  end
  local read = {}
  for _, pending in ipairs(call('XPENDING', stream, group, '-', '+', MOST_PENDING)) do
    read[#read + 1] = pending[1]
  end
  local is_read = set_of(read)
  for _, entry in ipairs(call('XRANGE', stream, '-', passed, 'COUNT', #read + MOST_PASSED)) do
    if not is_read[entry[1]] and #read < MOST_PENDING then
      free(queue, entry[1])
    end
  end
end

for _, queue in ipairs(known_queues()) do
  local stream = P .. queue
  local claimed = redis.pcall('XAUTOCLAIM', stream, group, consumer, idle, '0-0', 'COUNT', 100, 'JUSTID')
  if not claimed.err then
    for _, entry in ipairs(claimed[2]) do
      free(queue, entry)
    end
    for _, facts in ipairs(call('XINFO', 'CONSUMERS', stream, group)) do
      local name = field_of(facts, 'name')
      if name ~= consumer and field_of(facts, 'pending') == 0 and field_of(facts, 'idle') > dead then
        call('XGROUP', 'DELCONSUMER', stream, group, name)
      end
    end
  end
  free_passed(queue)
  recount(queue)
  if #old < most then
    for _, entry in ipairs(call('XRANGE', stream, '-', horizon, 'COUNT', most - #old)) do
      local id = task_of(entry[2])
      old[#old + 1] = id
    end
  end
end
if call('EXISTS', EPOCH) == 0 then
  return { 1, freed, old }
end
return { is_trimmed() and 2 or 0, freed, old }
