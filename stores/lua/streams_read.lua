-- Reads entries queue by queue, the preferred first, without waiting. use: base streams
--
-- In: names, group, consumer, how many, how many entries a stream may hold, whether queues that are not named are read too
--     (1: last), numbers of queues, of queues to pass over, of classes (-1: all) and of unwanted classes; then these names.
-- Out: 1 where the server has forgotten all (nothing was read), 2 where entries are missing, else 0; the queue at which
--      the reading stopped, because it holds a class that was not asked for (else empty); queue, entry, id and class of
--      each entry; queue, priority and id of each queue that the caller is asked to fill again; how many were nonsense.
local consumer, room, cap = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local stopped, entries, low, malformed = '', {}, {}, 0
local place = 11
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
local wanted = tonumber(ARGV[9]) >= 0 and set_of(names(tonumber(ARGV[9])))
local unwanted = set_of(names(tonumber(ARGV[10])))

if call('EXISTS', EPOCH) == 0 then
  return { 1, '', {}, {}, 0 }
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

for _, queue in ipairs(queues) do
  if room <= 0 then
    break
  end
  local stream = P .. queue
  local length = length_of(queue)
  if length * 2 <= cap then
    local priority, id = mark_of(BEHIND, queue)
    if priority and may_fill(queue) then
      call('HDEL', MISSED, queue)
      low[#low + 1] = queue
      low[#low + 1] = format('%d', priority)
      low[#low + 1] = format('%d', id)
    end
  end
  if length > 0 and not passed[queue] then
    if not is_covered(queue) then
      stopped = queue
      break
    end
    for _, entry in ipairs(read(stream)) do
      local id, class = task_of(entry[2] or {})
      if id then
        for _, value in ipairs({ queue, entry[1], id, class }) do
          entries[#entries + 1] = value
        end
        room = room - 1
      else
        call('XACK', stream, group, entry[1])
        call('XDEL', stream, entry[1])
        malformed = malformed + 1
      end
    end
  end
end
local health = 0
if #entries == 0 and stopped == '' and is_trimmed() then
  health = 2
end
return { health, stopped, entries, low, malformed }
