-- The keys of the dispatch. Nothing here is the truth: all of it can be lost, and is made again from the record.
--
-- Each queue has a stream, P .. queue, whose entries are tasks that nobody has claimed yet. The names of the other keys
-- hold a slash, which no queue's name can.
--   /sent             task id -> the entry that stands for it, its queue and its class
--   /classes/<queue>  task class -> how many entries it has in the stream
--   /queues           the queues that ever had an entry
--   /again            tasks that somebody wanted to add while their entries had been read and not taken away yet
--   /behind           queue -> priority and id from which on the record may hold tasks that found its stream full
--   /filling/<queue>  somebody is filling the stream again just now; ends by itself
--   /epoch            set once everything was delivered; missing: the server has forgotten all
local SENT, QUEUES, BEHIND, EPOCH = P .. '/sent', P .. '/queues', P .. '/behind', P .. '/epoch'
local AGAIN = P .. '/again'
local CLASSES, FILLING = P .. '/classes/', P .. '/filling/'
local group = ARGV[2]

-- The entry, queue and class that stand for a task.
local function sent_as(id)
  local known = call('HGET', SENT, id)
  if known then
    return string.match(known, '^(%S+) (%S+) (.*)$')
  end
end

-- The task has no entry any more.
local function forget(id, queue, class)
  call('HDEL', SENT, id)
  if call('HINCRBY', CLASSES .. queue, class, -1) <= 0 then
    call('HDEL', CLASSES .. queue, class)
  end
end

-- Adds an entry for a task; a former one counts no longer.
local function put(id, queue, class)
  local known, former, was = sent_as(id)
  if known then
    forget(id, former, was)
  end
  local entry = call('XADD', P .. queue, '*', 'job_id', id, 'job_type', class, 'queue', queue)
  call('HSET', SENT, id, entry .. ' ' .. queue .. ' ' .. class)
  call('HINCRBY', CLASSES .. queue, class, 1)
  call('SADD', QUEUES, queue)
  call('SREM', AGAIN, id)
  return entry
end

-- Takes an entry away, delivered or not.
local function drop(queue, entry, id)
  call('XACK', P .. queue, group, entry)
  call('XDEL', P .. queue, entry)
  local known, from, class = sent_as(id)
  if known == entry and from == queue then  -- entries of two streams may have one number
    forget(id, from, class)
  end
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
  if id and class and string.match(id, '^[1-9]%d*$') and tonumber(id) <= 4294967295 then
    return id, class
  end
end

-- Whether more tasks have an entry than there are entries: somebody has cut or deleted a stream.
local function is_trimmed()
  local entries = 0
  for _, queue in ipairs(call('SMEMBERS', QUEUES)) do
    entries = entries + call('XLEN', P .. queue)
  end
  return call('HLEN', SENT) > entries
end
