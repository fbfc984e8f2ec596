-- Takes entries away whose tasks need none any more. use: base streams
--
-- In: names, group; then queue, entry and task id of each; queue and entry are empty where only the task is known.
-- Out: ids of the tasks that somebody has wanted to add meanwhile.
local wanted, ids, gone = {}, {}, gone_keys()
for place = 3, #ARGV, 3 do
  local queue, entry, id = ARGV[place], ARGV[place + 1], ARGV[place + 2]
  ids[#ids + 1] = id
  if entry == '' then
    entry, queue = sent_as(id)
  end
  if entry then
    drop(queue, entry, id)
    if call('SREM', AGAIN, id) == 1 then
      wanted[#wanted + 1] = id
    end
  end
end
pcall(spread, 'SADD', gone, ids)  -- somebody else may have written there
call('EXPIRE', gone, 5)
return wanted
