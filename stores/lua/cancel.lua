-- Archives active rows as cancelled, whoever holds them. use: base layout heads rows rules
--
-- In: now, ids. Out: for each the head and the end of its row; two empty texts: no row was active.
local ids = cmsgpack.unpack(ARGV[2])
local rows = load(ids)
local out = {}
for _, id in ipairs(ids) do
  local row = rows[id]
  if row and row.active then
    archive(row, 2, '0')
    show_ended(out, row)
  else
    show_nothing(out, 2)
  end
end
write()
return out
