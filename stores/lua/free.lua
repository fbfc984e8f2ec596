-- Takes rows from their owners. use: base bell layout heads rows rules
--
-- In: now, ids. Out: the number of rows changed.
local _, rows = load(cmsgpack.unpack(ARGV[2]))
local count = 0
for _, row in ipairs(rows) do
  if row.active and row.owner then
    give_back(row, nil, now)
    count = count + 1
  end
end
write()
ring()
return count
