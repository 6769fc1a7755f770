# Redis, from Debian's packages. The append-only file makes it keep what it has
# confirmed, as a server that carries messages must.

url_redis() { echo "redis://127.0.0.1:$1"; }

packages_redis() { echo redis-server; }

start_redis() {
  local d=$state/redis
  mkdir -p "$d/data"
  setsid redis-server --bind 127.0.0.1 --port "$(port redis)" --dir "$d/data" --pidfile "$d/pid" --daemonize no \
    --save '' --appendonly yes --appendfsync everysec </dev/null >"$d/log" 2>&1 &
}

ready_redis() { [ -s "$state/redis/pid" ] && answers_as_redis; }

answers_as_redis() {
  [ "$( (exec 3<>"/dev/tcp/127.0.0.1/$(cat "$state/redis.port")" && printf 'PING\r\n' >&3 && timeout 5 head -c 5 <&3) 2>/dev/null)" = +PONG ]
}

docker_redis() { docker_args=(-p "127.0.0.1:$1:6379" redis:7 redis-server --appendonly yes); }

docker_ready_redis() { answers_as_redis; }
