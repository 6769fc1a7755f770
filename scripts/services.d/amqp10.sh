# ActiveMQ Artemis, an AMQP 1.0 broker, from its distribution at Maven. Where it
# cannot be had, RabbitMQ's AMQP 1.0 plugin stands in (stand_in_amqp10).

url_amqp10() { echo "amqp10://sekali:sekali@127.0.0.1:$1"; }

artemis_version=$(version_in artemis)
artemis_home=$(artifacts artemis "$artemis_version")

native_amqp10() { apt_ok || [ -z "$(packages_amqp10)" ]; }

packages_amqp10() { packages_of_java "$artemis_home"; }

fetch_amqp10() { fetch_with_maven artemis "$artemis_home" unpack-dependencies; }

# stand_in_amqp10 prints the service that is used where Artemis cannot be had.
stand_in_amqp10() { echo rabbitmq; }

# env_amqp10: the distribution has a JMS client.
env_amqp10() {
  local home=$artemis_home/apache-artemis-$artemis_version
  [ ! -d "$home" ] || printf "export SEKALI_TEST_ARTEMIS_HOME='%s'\n" "$home"
}

start_amqp10() {
  local d=$state/amqp10
  local instance=$d/instance
  if [ ! -x "$instance/bin/artemis" ]; then
    "$artemis_home/apache-artemis-$artemis_version/bin/artemis" create "$instance" --silent --user sekali --password sekali --require-login \
      --host 127.0.0.1 --default-port "$(port amqp10)" --nio --no-autotune --no-web --java-options '-Xms64m -Xmx512m' \
      --no-amqp-acceptor --no-hornetq-acceptor --no-mqtt-acceptor --no-stomp-acceptor >"$d/create.log" 2>&1 </dev/null \
      || die "amqp10: artemis create failed: see $d/create.log"
  else
    # The port of an earlier run may have been taken since.
    sed -i "s|\(<acceptor name=\"artemis\">tcp://[^:]*:\)[0-9]*|\1$(port amqp10)|" "$instance/etc/broker.xml"
  fi
  setsid sh -c 'echo $$ >"$0"; exec "$@"' "$d/pid" "$instance/bin/artemis" run </dev/null >"$d/log" 2>&1 &
}

ready_amqp10() { [ -s "$state/amqp10/pid" ] && answers_as_amqp10; }

# answers_as_amqp10: greeted with SASL's header, it answers with the same.
answers_as_amqp10() {
  [ "$( (exec 3<>"/dev/tcp/127.0.0.1/$(cat "$state/amqp10.port")" \
    && printf 'AMQP\003\001\0\0' >&3 \
    && timeout 5 head -c 8 <&3 | od -An -tx1 | tr -d ' \n') 2>/dev/null)" = 414d515003010000 ]
}

docker_amqp10() {
  docker_args=(-p "127.0.0.1:$1:61616" -e ARTEMIS_USER=sekali -e ARTEMIS_PASSWORD=sekali -e ANONYMOUS_LOGIN=false
    "apache/activemq-artemis:$artemis_version")
}

docker_ready_amqp10() { answers_as_amqp10; }
