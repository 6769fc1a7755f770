# RabbitMQ, from Debian's packages, with its AMQP 1.0 plugin.

url_rabbitmq() { echo "rabbitmq://sekali:sekali@127.0.0.1:$1/"; }

packages_rabbitmq() { echo rabbitmq-server; }

# rabbitmq_settings: lines of rabbitmq.conf. Deliveries time out after 30 s, so
# that tests see it happen; advanced.config has the server look every second.
rabbitmq_settings() {
  cat <<SETTINGS
loopback_users = none
default_user = sekali
default_pass = sekali
consumer_timeout = 30000
collect_statistics_interval = 1000
vm_memory_high_watermark.absolute = 2GB
disk_free_limit.absolute = 50MB
log.console = true
log.console.level = warning
SETTINGS
}

rabbitmq_advanced() { echo '[{rabbit, [{channel_tick_interval, 1000}]}].'; }

start_rabbitmq() {
  local d=$state/rabbitmq p
  p=$(port rabbitmq)
  mkdir -p "$d/data"
  { rabbitmq_settings; echo "listeners.tcp.1 = 127.0.0.1:$p"; } >"$d/rabbitmq.conf"
  rabbitmq_advanced >"$d/advanced.config"
  echo '[rabbitmq_amqp1_0].' >"$d/plugins"
  chown -R rabbitmq "$d"
  # Everything of its own: the name, the cookie (in HOME), the port mapper.
  launch rabbitmq rabbitmq env HOME="$d" RABBITMQ_NODENAME="sekali$p@localhost" RABBITMQ_CONFIG_FILE="$d/rabbitmq.conf" \
    RABBITMQ_ADVANCED_CONFIG_FILE="$d/advanced.config" RABBITMQ_MNESIA_BASE="$d/data" RABBITMQ_LOG_BASE="$d" RABBITMQ_LOGS=- RABBITMQ_ENABLED_PLUGINS_FILE="$d/plugins" \
    RABBITMQ_PID_FILE="$d/pid" RABBITMQ_DIST_PORT="$(port rabbitmq-nodes)" ERL_EPMD_PORT="$(port rabbitmq-epmd)" \
    ERL_EPMD_ADDRESS=127.0.0.1 RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}' \
    /usr/lib/rabbitmq/bin/rabbitmq-server
}

ready_rabbitmq() { [ -s "$state/rabbitmq/pid" ] && answers_as_rabbitmq; }

# answers_as_rabbitmq: greeted, it begins with a frame of method connection.start.
answers_as_rabbitmq() {
  [ "$( (exec 3<>"/dev/tcp/127.0.0.1/$(cat "$state/rabbitmq.port")" \
    && printf 'AMQP\0\0\011\001' >&3 \
    && timeout 5 head -c 11 <&3 | od -An -tx1 | tr -d ' \n' | cut -c1-6,15-) 2>/dev/null)" = 010000000a000a ]
}

# stopped_rabbitmq ends the port mapper, which outlives the server.
stopped_rabbitmq() {
  local p
  p=$(cat "$state/rabbitmq-epmd.port" 2>/dev/null) || return 0
  ERL_EPMD_PORT=$p epmd -kill >/dev/null 2>&1 || true
}

docker_rabbitmq() {
  { rabbitmq_settings; echo 'listeners.tcp.1 = 5672'; } >"$state/rabbitmq/rabbitmq.conf"
  rabbitmq_advanced >"$state/rabbitmq/advanced.config"
  echo '[rabbitmq_amqp1_0].' >"$state/rabbitmq/plugins"
  docker_args=(-p "127.0.0.1:$1:5672" -v "$state/rabbitmq/rabbitmq.conf:/etc/rabbitmq/rabbitmq.conf:ro"
    -v "$state/rabbitmq/advanced.config:/etc/rabbitmq/advanced.config:ro" -v "$state/rabbitmq/plugins:/etc/rabbitmq/enabled_plugins:ro" rabbitmq:3.10)
}

docker_ready_rabbitmq() { answers_as_rabbitmq; }
