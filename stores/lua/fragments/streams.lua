-- The keys of the dispatch. Nothing here is the truth: all of it can be lost, and is made again from the record.
--
-- Each queue has a stream, P .. queue, whose entries are tasks that nobody has claimed yet. The names of the other keys
-- hold a slash, which no queue's name can.
--   /sent             task id -> the entry that stands for it, its queue and its class
--   /classes/<queue>  task class -> how many entries it has in the stream
--   /queues           the queues that ever had an entry
--   /again            tasks that somebody wanted to add while their entries had been read and not taken away yet
--   /gone/<time>      tasks that were leased or found to be no work just then; ends by itself
--   /behind           queue -> priority and id from which on the record may hold tasks that found its stream full
--   /missed           queue -> the same, of those tasks alone that came since somebody began to fill the stream again
--   /filling/<queue>  somebody is filling the stream again just now; ends by itself
--   /epoch            set once everything was delivered; missing: the server has forgotten all
--   /record           the names of the record whose tasks these are
--   /claim            since when somebody with another record asks for all this, or that it is not to be had
local SENT, QUEUES, BEHIND, EPOCH = P .. '/sent', P .. '/queues', P .. '/behind', P .. '/epoch'
local AGAIN, MISSED = P .. '/again', P .. '/missed'
local RECORD, CLAIM, CLAIM_SECONDS, TOLD_SECONDS = P .. '/record', P .. '/claim', 15, 300
local CLASSES, FILLING, GONE = P .. '/classes/', P .. '/filling/', P .. '/gone/'
local group = ARGV[2]

-- Ends the script with the error of a command, which older servers do not take as it is.
local function fail(reply)
  error('-' .. reply.err, 0)
end

-- What the books hold, and what a script has changed in them: `close_books` writes it with few commands for all tasks.
local books, changed, counts, used, away, put_again = {}, {}, {}, {}, {}, {}

-- Reads the books for many tasks at once.
local function open_books(ids)
  for place, known in ipairs(fetch('HMGET', SENT, ids)) do
    books[ids[place]] = known
  end
end

-- The entry, queue and class that stand for a task; nothing where somebody else wrote there.
local function sent_as(id)
  local known = books[id]
  if known == nil then
    known = call('HGET', SENT, id)
    books[id] = known
  end
  if known then
    return string.match(known, '^(%d+%-%d+) ([%w_.:-]+) (.*)$')
  end
end

local function write_down(id, known)
  books[id], changed[id] = known, true
end

local function count(queue, class, number)
  local classes = listed(counts, queue)
  classes[class] = (classes[class] or 0) + number
end

local function close_books()
  for queue, entries in pairs(away) do
    away[queue] = nil
    for first = 1, #entries, STEP do
      local last = math.min(first + STEP - 1, #entries)
      call('XACK', P .. queue, group, unpack(entries, first, last))
      call('XDEL', P .. queue, unpack(entries, first, last))
    end
  end
  local new, gone = {}, {}
  for id in pairs(changed) do
    if books[id] then
      new[#new + 1] = id
      new[#new + 1] = books[id]
    else
      gone[#gone + 1] = id
    end
  end
  spread('HSET', SENT, new)
  spread('HDEL', SENT, gone)
  for queue, classes in pairs(counts) do
    for class, number in pairs(classes) do
      if number ~= 0 and call('HINCRBY', CLASSES .. queue, class, number) <= 0 then
        call('HDEL', CLASSES .. queue, class)
      end
    end
  end
  for queue in pairs(used) do
    call('SADD', QUEUES, queue)
  end
  spread('SREM', AGAIN, put_again)
  changed, counts, used, put_again = {}, {}, {}, {}
end

-- Does the work of a script that adds or drops, and writes the books even where it fails half-way.
local function with_books(work)
  local is_done, answer = pcall(work)
  close_books()
  if not is_done then
    error(answer, 0)
  end
  return answer
end

-- The fields of an entry of a stream; nil where it is not there.
local function entry_of(queue, entry)
  local found = try('XRANGE', P .. queue, entry, entry)
  return found and found[1] and found[1][2]
end

-- The queues that ever had an entry. What is the name of none is dropped.
local function known_queues()
  local queues = {}
  for _, queue in ipairs(call('SMEMBERS', QUEUES)) do
    if #queue <= 64 and string.match(queue, '^[%w_.:-]+$') then
      queues[#queues + 1] = queue
    else
      call('SREM', QUEUES, queue)
    end
  end
  return queues
end

-- How many entries a stream has. Ends the script where the key is none; the next mending drops it then.
local function length_of(queue)
  local length = redis.pcall('XLEN', P .. queue)
  if type(length) == 'number' then
    return length
  end
  if not string.find(length.err, 'WRONGTYPE', 1, true) then
    fail(length)
  end
  call('SADD', QUEUES, queue)
  error('the key ' .. P .. queue .. ' is no stream', 0)
end

-- Priority and id from which on a queue is behind; nil: it is not. Where somebody else wrote there: from the beginning.
local function mark_of(key, queue)
  local mark = call('HGET', key, queue)
  if not mark then
    return nil
  end
  local priority, id = string.match(mark, '^(%d+) (%d+)$')
  priority, id = tonumber(priority), tonumber(id)
  if priority and priority <= U32 and id <= U32 then
    return priority, id
  end
  return 0, 1
end

-- The task has no entry any more.
local function forget(id, queue, class)
  write_down(id, false)
  count(queue, class, -1)
end

-- Adds an entry for a task; a former one counts no longer.
local function put(id, queue, class)
  local known, former, was = sent_as(id)
  if known then
    forget(id, former, was)
  end
  used[queue] = true
  local entry = call('XADD', P .. queue, '*', 'job_id', id, 'job_type', class, 'queue', queue)
  write_down(id, entry .. ' ' .. queue .. ' ' .. class)
  count(queue, class, 1)
  put_again[#put_again + 1] = id
  return entry
end

-- Takes an entry away, delivered or not.
local function drop(queue, entry, id)
  local entries = listed(away, queue)
  entries[#entries + 1] = entry
  local known, from, class = sent_as(id)
  if known == entry and from == queue then  -- entries of two streams may have one number
    forget(id, from, class)
  end
end

-- The keys of the tasks that went in these two seconds, and in the two before.
local function gone_keys()
  local time = math.floor(call('TIME')[1] / 2)
  return GONE .. format('%d', time), GONE .. format('%d', time - 1)
end

-- The field of an entry, or of the answer of XINFO.
local function field_of(fields, name)
  for place = 1, #fields, 2 do
    if fields[place] == name then
      return fields[place + 1]
    end
  end
end

-- The task that an entry stands for; nil where it stands for none.
local function task_of(fields)
  local id, class = field_of(fields, 'job_id'), field_of(fields, 'job_type')
  if id and class and (id == '0' or string.match(id, '^[1-9]%d*$')) and tonumber(id) <= U32 then
    return id, class
  end
end

-- Whether more tasks have an entry than there are entries: somebody has cut or deleted a stream.
local function is_trimmed()
  local entries = 0
  for _, queue in ipairs(known_queues()) do
    entries = entries + length_of(queue)
  end
  return call('HLEN', SENT) > entries
end

-- Counts the classes in a stream again, unless they fit its length: they drift where somebody deletes keys of ours.
local function recount(queue)
  local counted, entries = 0, length_of(queue)
  for _, number in ipairs(call('HVALS', CLASSES .. queue)) do
    counted = counted + (tonumber(number) or entries + 1)
  end
  if counted == entries then
    return
  end
  local counts = {}
  for _, entry in ipairs(call('XRANGE', P .. queue, '-', '+')) do
    local id, class = task_of(entry[2])
    if id then
      counts[class] = (counts[class] or 0) + 1
    end
  end
  call('DEL', CLASSES .. queue)
  for class, count in pairs(counts) do
    call('HSET', CLASSES .. queue, class, count)
  end
end

-- Forgets everything: it is of a record that is no more.
local function forget_all()
  for _, queue in ipairs(call('TYPE', QUEUES).ok == 'set' and known_queues() or {}) do
    call('DEL', P .. queue, CLASSES .. queue, FILLING .. queue)
  end
  call('DEL', SENT, QUEUES, BEHIND, MISSED, AGAIN, EPOCH)
end

-- The text of a key; false where there is none, or another type of key.
local function text_of(key)
  local text = redis.pcall('GET', key)
  if type(text) ~= 'table' then
    return text
  end
  if not string.find(text.err, 'WRONGTYPE', 1, true) then
    fail(text)
  end
  return false
end

-- Whether all this is of the caller's record, whose names come where other scripts have the time; one in common is
-- enough. A record without a name is believed. Where it is of another record nothing may be read or written, until
-- nobody with that one has come for CLAIM_SECONDS: its database has moved, or was replaced by another.
local function is_ours()
  local names = ARGV[1]
  if names == '' then
    return true
  end
  local found = text_of(RECORD)
  if not (found and string.match(found, '^%l+:%x+')) then  -- none, or what nobody of us wrote
    call('SET', RECORD, names)
    return true
  end
  local known, number = {}, 0
  for name in string.gmatch(found, '%S+') do
    known[name] = true
    number = number + 1
  end
  local is_same = false
  for name in string.gmatch(names, '%S+') do
    is_same = is_same or known[name]
    number = number - 1
  end
  if is_same then
    if number <= 0 and found ~= names then
      call('SET', RECORD, names)
    end
    if tonumber(text_of(CLAIM) or nil) then
      call('SET', CLAIM, 'refused', 'EX', TOLD_SECONDS)  -- for the doctor
    end
    return true
  end
  local since = tonumber(text_of(CLAIM) or nil)
  if not since or since > now then
    call('SET', CLAIM, now, 'EX', TOLD_SECONDS)
    return false
  end
  if now - since < CLAIM_SECONDS then
    return false
  end
  forget_all()
  call('DEL', CLAIM)
  call('SET', RECORD, names)
  return true
end

if not is_ours() then
  return redis.error_reply('TAKEN ' .. P)
end
