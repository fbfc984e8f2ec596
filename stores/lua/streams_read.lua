-- Reads entries queue by queue, the preferred first, without waiting. use: base streams
--
-- In: names, group, consumer, how many, how many entries a stream may hold, whether queues that are not named are read too
--     (1: last), numbers of queues, of queues to pass over, of queues whose record came short, of classes (-1: all) and
--     of unwanted classes; then these names.
-- Out: 1 where the server has forgotten all (nothing was read), 2 where entries are missing, else 0; the queue at which
--      the reading stopped (else empty), and why: 1 because it holds a class that was not asked for, 2 because it is
--      behind and the record has not come short, 3 because of that while all other queues are empty; how many tasks
--      have an entry; the entries in their order, as queue,
--      class and a text of entry and id of each, where one has the queue and class of the one before it; queue, priority
--      and id of each queue that the caller is asked to fill again; how many were nonsense.
--
-- A queue that is behind is leased from the record until that comes short: entries in front of a backlog that is in the
-- record anyway would be work for nothing.
local consumer, room, cap = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local stopped, why, entries, low, malformed = '', 0, {}, {}, 0
local run, run_class = {}, nil
local place = 12
local FILL_MILLISECONDS = 2000

local function names(count)
  local found = {}
  for _ = 1, count do
    found[#found + 1] = ARGV[place]
    place = place + 1
  end
  return found
end

local queues = names(tonumber(ARGV[7]))
local passed = set_of(names(tonumber(ARGV[8])))
local spent = set_of(names(tonumber(ARGV[9])))
local wanted = tonumber(ARGV[10]) >= 0 and set_of(names(tonumber(ARGV[10])))
local unwanted = set_of(names(tonumber(ARGV[11])))

if call('EXISTS', EPOCH) == 0 then
  return { 1, '', 0, 0, {}, {}, 0 }
end
if ARGV[6] == '1' then
  local listed_ones, others = set_of(queues), {}
  for _, queue in ipairs(known_queues()) do
    if not listed_ones[queue] then
      others[#others + 1] = queue
    end
  end
  table.sort(others)
  for _, queue in ipairs(others) do
    queues[#queues + 1] = queue
  end
end

local function is_covered(queue)
  for _, class in ipairs(try('HKEYS', CLASSES .. queue) or {}) do
    if unwanted[class] or (wanted and not wanted[class]) then
      return false
    end
  end
  return true
end

-- Whether nobody fills the stream just now. A sign that would not end by itself is not one of ours.
local function may_fill(queue)
  if call('SET', FILLING .. queue, '1', 'NX', 'PX', FILL_MILLISECONDS) then
    return true
  end
  local left = call('PTTL', FILLING .. queue)
  if left >= 0 and left <= FILL_MILLISECONDS then
    return false
  end
  call('SET', FILLING .. queue, '1', 'PX', FILL_MILLISECONDS)
  return true
end

local function read(stream)
  local reply = redis.pcall('XREADGROUP', 'GROUP', group, consumer, 'COUNT', room, 'STREAMS', stream, '>')
  if reply and reply.err then
    if string.find(reply.err, 'NOGROUP', 1, true) then
      call('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
      reply = call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', room, 'STREAMS', stream, '>')
    else
      fail(reply)
    end
  end
  return reply and reply[1] and reply[1][2] or {}
end

local function is_alone(queue)
  for _, other in ipairs(known_queues()) do
    if other ~= queue and (length_of(other) > 0 or mark_of(BEHIND, other)) then
      return false
    end
  end
  return true
end

local function end_run(queue)
  if #run > 0 then
    local place = #entries
    entries[place + 1], entries[place + 2], entries[place + 3] = queue, run_class, table.concat(run, ' ')
    run = {}
  end
end

for _, queue in ipairs(queues) do
  if room <= 0 then
    break
  end
  local stream = P .. queue
  local length = length_of(queue)
  local priority, id = mark_of(BEHIND, queue)
  if priority then
    if not (spent[queue] or passed[queue]) then
      stopped, why = queue, is_alone(queue) and 3 or 2
      break
    end
    if length * 2 <= cap and may_fill(queue) then
      call('HDEL', MISSED, queue)
      low[#low + 1] = queue
      low[#low + 1] = format('%d', priority)
      low[#low + 1] = format('%d', id)
    end
  end
  if length > 0 and not passed[queue] then
    if not is_covered(queue) then
      stopped, why = queue, 1
      break
    end
    for _, entry in ipairs(read(stream)) do
      local id, class = task_of(entry[2] or {})
      if id then
        if class ~= run_class then
          end_run(queue)
          run_class = class
        end
        local place = #run
        run[place + 1], run[place + 2] = entry[1], id
        room = room - 1
      else
        call('XACK', stream, group, entry[1])
        call('XDEL', stream, entry[1])
        malformed = malformed + 1
      end
    end
    end_run(queue)
  end
end
local health = 0
if #entries == 0 and stopped == '' and is_trimmed() then
  health = 2
end
return { health, stopped, why, call('HLEN', SENT), entries, low, malformed }
