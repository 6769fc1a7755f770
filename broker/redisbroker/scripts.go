package redisbroker

import "github.com/redis/go-redis/v9"

// The scripts do at one moment what must not be torn apart: look who has an
// entry, and act on it. KEYS[1] is the stream, ARGV[1] the group, ARGV[2] our
// consumer's name. A delivery is told from an earlier or later one of the same
// entry by its owner and its count of deliveries.

// claimScript takes entries that were idle for ARGV[3] ms, ARGV[5] at most,
// from the cursor ARGV[4] on, and raises their counts of deliveries. It looks
// at a limited part of a long list. It returns the next cursor, entries as
// {id, count, fields}, and the ids of those that are pending but gone. JUSTID
// first: before Redis 7 XAUTOCLAIM does not tell which are gone.
var claimScript = redis.NewScript(`
local key, group, me, want, steps = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[5]), 8
local cursor, got, gone = ARGV[4], {}, {}
repeat
  local r = redis.call('XAUTOCLAIM', key, group, me, ARGV[3], cursor, 'COUNT', want - #got, 'JUSTID')
  cursor, steps = r[1], steps - 1
  for _, id in ipairs(r[2]) do
    local entry = redis.call('XCLAIM', key, group, me, 0, id)[1]
    if entry then
      got[#got + 1] = {id, redis.call('XPENDING', key, group, id, id, 1)[1][4], entry[2]}
    else
      redis.call('XACK', key, group, id)
      gone[#gone + 1] = id
    end
  end
  for _, id in ipairs(r[3] or {}) do gone[#gone + 1] = id end
until #got >= want or cursor == '0-0' or steps == 0
return {cursor, got, gone}`)

// releaseScript hands entries to the consumer ARGV[3], if they are still ours:
// from ARGV[4] on id, count, idle time to set in ms, count to set. It returns
// the ids of those that are gone from the stream.
var releaseScript = redis.NewScript(`
local key, group, me, gone = KEYS[1], ARGV[1], ARGV[2], {}
for i = 4, #ARGV, 4 do
  local id = ARGV[i]
  local p = redis.call('XPENDING', key, group, id, id, 1)[1]
  if not p then
    if #redis.call('XRANGE', key, id, id) == 0 then gone[#gone + 1] = id end
  elseif p[2] == me and p[4] == tonumber(ARGV[i + 1]) then
    local r = redis.call('XCLAIM', key, group, ARGV[3], 0, id, 'IDLE', ARGV[i + 2], 'RETRYCOUNT', ARGV[i + 3], 'JUSTID')
    if #r == 0 then gone[#gone + 1] = id end
  end
end
return gone`)

// keepScript sets the idle time of entries to 0, if they are still ours: from
// ARGV[3] on id, count. It returns 1 for each that nobody else can have: one
// that is not pending any more is acknowledged, or deleted while in hand.
var keepScript = redis.NewScript(`
local key, group, me, kept = KEYS[1], ARGV[1], ARGV[2], {}
for i = 3, #ARGV, 2 do
  local id, ours = ARGV[i], 1
  local p = redis.call('XPENDING', key, group, id, id, 1)[1]
  if p and p[2] == me and p[4] == tonumber(ARGV[i + 1]) then
    redis.call('XCLAIM', key, group, me, 0, id, 'JUSTID')
  elseif p then
    ours = 0
  end
  kept[#kept + 1] = ours
end
return kept`)

// tidyScript removes consumers under whose names nothing is pending, for to
// remove one with pending entries loses them: ourselves if ARGV[3] is 0, else
// those that begin with ARGV[4] and were idle for longer than ARGV[3] ms. (One
// that lives after all is made again by its next question.)
var tidyScript = redis.NewScript(`
local key, group, me, limit, prefix = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
for _, c in ipairs(redis.call('XINFO', 'CONSUMERS', key, group)) do
  local is = {}
  for i = 1, #c, 2 do is[c[i]] = c[i + 1] end
  local dead = limit > 0 and is.name ~= me and is.idle > limit and string.sub(is.name, 1, #prefix) == prefix
  if is.pending == 0 and (dead or limit == 0 and is.name == me) then
    redis.call('XGROUP', 'DELCONSUMER', key, group, is.name)
  end
end
return 0`)
