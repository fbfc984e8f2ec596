-- Brings the books in order, a part at a time: what is there no more is forgotten, what is not ours is dropped. use: base streams
--
-- In: names, group, cursor; 0 at first. Out: the next cursor, 0 at the end; names of what was dropped.
local dropped = {}

local function keep_if(key, kind)
  local found = call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    call('DEL', key)
    dropped[#dropped + 1] = key
  end
end

-- No entry can be added any more: somebody used up the numbers.
local function is_worn_out(stream)
  local facts = try('XINFO', 'STREAM', stream)
  return facts and string.match(field_of(facts, 'last-generated-id'), '^%d+') == '18446744073709551615'
end

if ARGV[3] == '0' then
  keep_if(SENT, 'hash')
  keep_if(BEHIND, 'hash')
  keep_if(MISSED, 'hash')
  keep_if(QUEUES, 'set')
  keep_if(AGAIN, 'set')
  for _, queue in ipairs(known_queues()) do
    keep_if(P .. queue, 'stream')
    keep_if(CLASSES .. queue, 'hash')
    if is_worn_out(P .. queue) then
      call('DEL', P .. queue)
      dropped[#dropped + 1] = P .. queue
    end
    recount(queue)
  end
end
local reply = call('HSCAN', SENT, ARGV[3], 'COUNT', 500)
for place = 1, #reply[2], 2 do
  local id = reply[2][place]
  local entry, queue, class = sent_as(id)
  if not entry then
    write_down(id, false)
    dropped[#dropped + 1] = SENT .. ' ' .. id
  elseif not entry_of(queue, entry) then
    forget(id, queue, class)
  else
    used[queue] = true
  end
end
close_books()
return { reply[1], dropped }
