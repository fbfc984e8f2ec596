-- Takes entries away whose tasks need none any more. use: base streams
--
-- In: names, group; then queues, each with a text of entry and task id of each; queue is empty and entry a dash where
--     only the task is known.
-- Out: ids of the tasks that somebody has wanted to add meanwhile.
local wanted, queues, entries, ids, gone = {}, {}, {}, {}, gone_keys()
for place = 4, #ARGV, 2 do
  for entry, id in string.gmatch(ARGV[place], '(%S+) (%d+)') do
    ids[#ids + 1] = id
    entries[#entries + 1] = entry
    queues[#queues + 1] = ARGV[place - 1]
  end
end
open_books(ids)
local is_wanted = fetch('SMISMEMBER', AGAIN, ids)
with_books(function()
  for number, id in ipairs(ids) do
    local queue, entry = queues[number], entries[number]
    if entry == '-' then
      entry, queue = sent_as(id)
    end
    if entry then
      drop(queue, entry, id)
      if is_wanted[number] == 1 then
        wanted[#wanted + 1] = id
      end
    end
  end
end)
spread('SREM', AGAIN, wanted)
pcall(spread, 'SADD', gone, ids)  -- somebody else may have written there
call('EXPIRE', gone, 5)
return wanted
