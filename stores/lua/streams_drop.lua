-- Takes entries away whose tasks need none any more. use: base streams
--
-- In: now, group; then queue, entry and task id of each; queue and entry are empty where only the task is known.
-- Out: how many.
for place = 3, #ARGV, 3 do
  local queue, entry, id = ARGV[place], ARGV[place + 1], ARGV[place + 2]
  if entry == '' then
    entry, queue = sent_as(id)
  end
  if entry then
    drop(queue, entry, id)
  end
end
return (#ARGV - 2) / 3
