-- Out: for each id the entries of its error history (msgpack), oldest first. use: base
local out = {}
for at, id in ipairs(cmsgpack.unpack(ARGV[2])) do
  out[at] = try('LRANGE', P .. 'history:' .. id, 0, -1) or {}
end
return out
