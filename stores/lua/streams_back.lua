-- Gives entries back that were read and not claimed. use: base streams
--
-- In: names, group; then queue, entry, task id, and the queue and class of the task, of each.
-- Out: queue and last new entry of each stream.
local last = {}
with_books(function()
  for place = 3, #ARGV, 5 do
    local id, queue = ARGV[place + 2], ARGV[place + 3]
    drop(ARGV[place], ARGV[place + 1], id)
    if not sent_as(id) then
      last[queue] = put(id, queue, ARGV[place + 4])
    end
  end
end)
local answer = {}
for queue, entry in pairs(last) do
  answer[#answer + 1] = queue
  answer[#answer + 1] = entry
end
return answer
