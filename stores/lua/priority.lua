-- Sets the priority of active rows. use: base layout heads rows
--
-- In: now, ids, priority. Out: the number of rows found.
local _, rows = load(cmsgpack.unpack(ARGV[2]))
local priority, count = tonumber(ARGV[3]), 0
for _, row in ipairs(rows) do
  if row.active then
    row.priority, row.modified = priority, now
    put(row)
    count = count + 1
  end
end
write()
return count
