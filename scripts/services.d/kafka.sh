# Apache Kafka, one node, broker and controller, from Maven's artifacts.

url_kafka() { echo "kafka://127.0.0.1:$1"; }

kafka_version=$(version_in kafka)
kafka_lib=$(artifacts kafka "$kafka_version")

# It needs no root where Java and Maven, or the artifacts, are there.
native_kafka() { apt_ok || [ -z "$(packages_kafka)" ]; }

packages_kafka() { packages_of_java "$kafka_lib"; }

fetch_kafka() {
  fetch_with_maven kafka "$kafka_lib" copy-dependencies
}

# kafka_settings HOST PORT CONTROLLER-PORT: lines of server.properties. HOST is
# what it listens on.
kafka_settings() {
  cat <<SETTINGS
node.id=1
process.roles=broker,controller
listeners=PLAINTEXT://$1:$2,CONTROLLER://127.0.0.1:$3
advertised.listeners=PLAINTEXT://127.0.0.1:$2
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:$3
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
num.partitions=1
auto.create.topics.enable=false
SETTINGS
  # One node is all the replicas there are; small numbers of what it does not need.
  cat <<SETTINGS
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
log.cleaner.dedupe.buffer.size=4194304
num.network.threads=2
num.io.threads=4
SETTINGS
  # Tests wait for sessions to end, for transactions to time out, and for the
  # compaction of a topic.
  cat <<SETTINGS
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=6000
group.consumer.min.heartbeat.interval.ms=500
group.consumer.heartbeat.interval.ms=1000
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
log.cleaner.backoff.ms=500
SETTINGS
}

start_kafka() {
  local d=$state/kafka
  local java=(java -cp "$kafka_lib/*" -Djava.awt.headless=true -XX:+ExitOnOutOfMemoryError)
  { kafka_settings 127.0.0.1 "$(port kafka)" "$(port kafka-controller)"; echo "log.dirs=$d/data"; } >"$d/server.properties"
  if [ ! -s "$d/data/meta.properties" ]; then
    "${java[@]}" -Xmx128m kafka.tools.StorageTool format -t "sekali-$(date +%s)" -c "$d/server.properties" >"$d/format.log" 2>&1 </dev/null \
      || die "kafka: the format of its storage failed: see $d/format.log"
  fi
  # Warnings go into the log, and the line that ready_kafka waits for.
  setsid sh -c 'echo $$ >"$0"; exec "$@"' "$d/pid" "${java[@]}" -Xmx512m -Dorg.slf4j.simpleLogger.showDateTime=true \
    '-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS' -Dorg.slf4j.simpleLogger.defaultLogLevel=warn \
    -Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info kafka.Kafka "$d/server.properties" </dev/null >"$d/log" 2>&1 &
}

# ready_kafka: this start's log has the line, and a request for the versions of
# its API (18, version 0) is answered without an error.
ready_kafka() {
  grep -q 'Kafka Server started' "$state/kafka/log" 2>/dev/null && answers_as_kafka
}

answers_as_kafka() {
  [ "$( (exec 3<>"/dev/tcp/127.0.0.1/$(cat "$state/kafka.port")" \
    && printf '\0\0\0\012\0\022\0\0\0\0\0\007\377\377' >&3 \
    && timeout 5 head -c 10 <&3 | tail -c 6 | od -An -tx1 | tr -d ' \n') 2>/dev/null)" = 000000070000 ]
}

docker_kafka() {
  # The same port inside: it must reach itself where clients reach it.
  local settings
  mapfile -t settings < <(kafka_settings 0.0.0.0 "$1" "$(port kafka-controller)" | docker_kafka_env)
  docker_args=(-p "127.0.0.1:$1:$1" -e KAFKA_HEAP_OPTS=-Xmx512m "${settings[@]}" "apache/kafka:$kafka_version")
}

# docker_kafka_env: a.b=c becomes -e KAFKA_A_B=c, as the image wants it.
docker_kafka_env() { sed 's/=/\n/' | while read -r name && read -r value; do printf -- '-e\nKAFKA_%s=%s\n' "$(tr a-z. A-Z_ <<<"$name")" "$value"; done; }

docker_ready_kafka() { docker logs "$1" 2>&1 | grep 'Kafka Server started' && answers_as_kafka; }
