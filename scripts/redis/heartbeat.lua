-- The gateways that are alive, on Redis's clock: gateways' own clocks differ.
--
-- KEYS[1]  a sorted set: each gateway's id, scored with the time of its last beat (milliseconds on Redis's clock)
-- ARGV     1 id of the gateway   2 a gateway is alive for so long after its beat (milliseconds)   3 optional: 1, it leaves
-- Reply    gateways alive, the one that asks among them unless it leaves
--
-- Numbers are written with %.0f: Redis 7.2.0-7.2.4 prints some integers in exponent form.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local expiry = tonumber(ARGV[2])

local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'zset' and kind ~= 'none' then redis.call('DEL', KEYS[1]) end

if ARGV[3] == '1' then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - expiry))
-- The clock stepped back: beats from the future would never end.
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + expiry), '+inf')
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', expiry))
return redis.call('ZCARD', KEYS[1])
