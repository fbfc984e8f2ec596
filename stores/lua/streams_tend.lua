-- Frees what dead consumers hold, and looks whether everything is in order. use: base streams
--
-- In: names, group, consumer, milliseconds after which a read entry is read by others, milliseconds after which a silent
--     consumer without entries is forgotten, milliseconds after which a waiting entry is old, how many old ones to name,
--     queue and entry behind which to look for these (empty: from the beginning).
-- Out: 1 where the server has forgotten all, 2 where entries are missing, else 0; how many entries were freed; queue,
--      entry and task id of old ones; queue and entry of the last one where there may be more, else twice empty.
--
-- Also freed is what no reader would ever get: an entry that the group has passed without giving it to anybody, as
-- after XGROUP SETID or DELCONSUMER by hand. A freed entry goes to the end of its stream under a new number, and the
-- record decides whether it is still work.
local consumer, idle, dead = ARGV[3], ARGV[4], tonumber(ARGV[5])
local clock = call('TIME')
local horizon = format('%d', clock[1] * 1000 + math.floor(clock[2] / 1000) - tonumber(ARGV[6]))
local freed, old, most, last_queue, last_entry = 0, {}, tonumber(ARGV[7]), ARGV[8], ARGV[9]
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

-- Old entries of one queue, behind the last one. What names no task, or stands beside the entry that the books have for
-- its task, is no work for anybody. Where there are too many to name, the next look goes on behind them.
local function name_old(queue)
  local from = queue == last_queue and '(' .. last_entry or '-'
  for _, entry in ipairs(call('XRANGE', P .. queue, from, horizon, 'COUNT', most)) do
    local number, id = entry[1], task_of(entry[2])
    local known, place = sent_as(id or '')
    if not id or (known and (known ~= number or place ~= queue)) then
      drop(queue, number, id or '')
    else
      for _, value in ipairs({ queue, number, id }) do
        old[#old + 1] = value
      end
    end
    most = most - 1
    last_queue, last_entry = queue, number
  end
end

local queues = known_queues()
table.sort(queues)
with_books(function()
  for _, queue in ipairs(queues) do
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
    elseif not string.find(claimed.err, 'NOGROUP', 1, true) then
      fail(claimed)
    end
    free_passed(queue)
    close_books()
    recount(queue)
    if most > 0 and queue >= last_queue then
      name_old(queue)
    end
  end
end)
if most > 0 then
  last_queue, last_entry = '', ''
end
local health = 0
if call('EXISTS', EPOCH) == 0 then
  health = 1
elseif is_trimmed() then
  health = 2
end
return { health, freed, old, last_queue, last_entry }
