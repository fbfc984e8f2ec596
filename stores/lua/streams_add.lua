-- Adds entries for tasks that have none. use: base streams
--
-- In: names, group, how many entries a stream may hold, whether the tasks are surely held by nobody (1), the queue whose
--     stream this fills again (empty: none), priority and id from which on that queue is still behind (empty: it is not
--     any more); then the tasks in their order, as queue, class, priority and a text of ids, where one has the queue,
--     class and priority of the one before it.
-- Out: how many were added, how many found their stream full, the tasks that went since the record was read or may have,
--     then queue and last new entry of each stream.
--
-- What was read of the record a moment ago may have been leased since, and its entry be gone again: it gets no second
-- one, and the record is asked once more. While a queue is behind only the one who fills it adds to it, so that younger
-- tasks do not overtake the older ones.
local cap, is_free, filled = tonumber(ARGV[3]), ARGV[4] == '1', ARGV[5]
local added, full, gone, lengths, closed, last = 0, 0, {}, {}, {}, {}

-- Whether the task's entry waits in its stream, or was read so lately that its reader may be about to claim it. Such a
-- reader is told when it takes the entry away: the task may have come back since. An entry that waits where the task is
-- not looked for goes: a database that was restored gives ids again, and routes change.
local function is_on_its_way(id, entry, queue, fits)
  local stream = P .. queue
  if not entry_of(queue, entry) then
    return false
  end
  local pending = redis.pcall('XPENDING', stream, group, entry, entry, 1)
  if pending.err or #pending == 0 then
    if not fits then
      drop(queue, entry, id)
      close_books()  -- so that the stream is not longer than it is
    end
    return fits
  end
  if is_free or pending[1][3] >= 1000 then
    return false
  end
  call('SADD', AGAIN, id)
  return true
end

local ids, ends, went = {}, {}, {}
for place = 11, #ARGV, 4 do
  for id in string.gmatch(ARGV[place], '%d+') do
    ids[#ids + 1] = id
  end
  ends[place] = #ids
end
open_books(ids)
if not is_free and #ids > 0 then  -- which tasks may have been leased since the record was read
  for _, key in ipairs({ gone_keys() }) do
    for place, is_member in ipairs(try('SMISMEMBER', key, unpack(ids)) or {}) do
      went[ids[place]] = went[ids[place]] or is_member == 1
    end
  end
end

local function lower(key, queue, priority, id)
  local marked, first = mark_of(key, queue)
  if not (marked and (marked < priority or (marked == priority and first <= id))) then
    call('HSET', key, queue, format('%d %d', priority, id))
  end
end

if filled ~= '' then
  if ARGV[6] == '' then
    call('HDEL', BEHIND, filled)
  else
    call('HSET', BEHIND, filled, ARGV[6] .. ' ' .. ARGV[7])
  end
  local priority, id = mark_of(MISSED, filled)
  if priority then  -- what was read of the record to fill the stream may be older than these
    lower(BEHIND, filled, priority, id)
  end
end

local function add(id, queue, class, priority)
  local length = lengths[queue]
  if not length then
    length = length_of(queue)
    closed[queue] = queue ~= filled and call('HEXISTS', BEHIND, queue) == 1
  end
  if closed[queue] or length >= cap then
    closed[queue] = queue ~= filled
    lower(BEHIND, queue, priority, tonumber(id))
    lower(MISSED, queue, priority, tonumber(id))
    full = full + 1
  else
    last[queue] = put(id, queue, class)
    length = length + 1
    added = added + 1
  end
  lengths[queue] = length
end

with_books(function()
  local first = 1
  for place = 11, #ARGV, 4 do
    local queue, class, priority = ARGV[place - 3], ARGV[place - 2], tonumber(ARGV[place - 1])
    for number = first, ends[place] do
      local id = ids[number]
      local entry, from, was = sent_as(id)
      if entry and is_on_its_way(id, entry, from, from == queue and was == class) then
        -- nothing to do
      elseif went[id] then
        gone[#gone + 1] = id
      else
        add(id, queue, class, priority)
      end
    end
    first = ends[place] + 1
  end
end)
local answer = { added, full, gone }
for queue, entry in pairs(last) do
  answer[#answer + 1] = queue
  answer[#answer + 1] = entry
end
return answer
