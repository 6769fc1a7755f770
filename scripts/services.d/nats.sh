# NATS with JetStream, from Debian's packages.

url_nats() { echo "nats://127.0.0.1:$1"; }

packages_nats() { echo nats-server; }

start_nats() {
  local d=$state/nats p
  p=$(port nats)
  mkdir -p "$d"
  setsid nats-server -a 127.0.0.1 -p "$p" -js -sd "$d/store" -P "$d/pid" </dev/null >"$d/log" 2>&1 &
}

ready_nats() { [ -s "$state/nats/pid" ] && greets_as_nats; }

greets_as_nats() {
  [ "$( (exec 3<>"/dev/tcp/127.0.0.1/$(cat "$state/nats.port")" && head -c 4 <&3) 2>/dev/null)" = INFO ]
}

docker_nats() { docker_args=(-p "127.0.0.1:$1:4222" nats:2.9 -js); }

docker_ready_nats() { greets_as_nats; }
