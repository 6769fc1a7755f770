package run

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// brokers are the sources of the files that Example writes.
var brokers = map[string]string{
	"embedded": `  # A broker in this very process: nothing to install. Producers use it as any
  # NATS with JetStream, at nats://127.0.0.1:4222. For more than one instance,
  # use a real broker: only url and what to receive change.
  url: nats://embedded
  stream: ORDERS
  subjects: orders.>            # that the stream has; it is made if it is not there
  directory: sekali-broker      # where it keeps messages
  listen: ${SEKALI_LISTEN_BROKER:-127.0.0.1:4222}
`,
	"nats": `  url: ${SEKALI_BROKER_URL:-nats://localhost:4222}
  stream: ORDERS                # it must exist: nats stream add ORDERS --subjects 'orders.>'
  # subjects: orders.paid       # only these of the stream
  # group: stock-service        # the durable consumer; the consumer's name by default
  # ordered: true               # one after another, in the stream's order, across instances
  # ordering_key_header: sku    # messages of a key keep their order in one process
  # ack_wait: 30s
`,
	"kafka": `  url: ${SEKALI_BROKER_URL:-kafka://localhost:9092}
  topics: [orders]
  # group: stock-service        # the consumer's name by default
  # only_new: true              # a new group begins with what is published later
  # server_side: true           # KIP-848, Kafka 4.0 and later
`,
	"rabbitmq": `  url: ${SEKALI_BROKER_URL:-rabbitmq://guest:guest@localhost:5672}
  queue: orders
  declare: quorum               # makes the queue if it is not there; leave it out to take it as it is
  # single_active: true         # the queue has x-single-active-consumer: one after another
  # delayed_retry: true         # the server waits before a further attempt
  # prefetch: 500
`,
	"amqp10": `  url: ${SEKALI_BROKER_URL:-amqp10://localhost:5672}
  queue: orders
  # exclusive: true             # the queue has one consumer at a time: one after another
  # credit: 500
`,
	"redis": `  url: ${SEKALI_BROKER_URL:-redis://localhost:6379}
  stream: orders
  # group: stock-service        # the consumer's name by default
  # body_field: body
`,
}

// stores are the databases of the files that Example writes.
var stores = map[string]string{
	"postgres": "${SEKALI_DATABASE_URL:-postgres://localhost:5432/shop}",
	"mysql":    "${SEKALI_DATABASE_URL:-mysql://root@localhost:3306/shop}",
	"sqlite":   "${SEKALI_DATABASE_URL:-sqlite:shop.db}",
}

// Example returns a file for a broker and a database, with comments. The error
// says which there are.
func Example(broker, database string) (string, error) {
	source, ok := brokers[broker]
	if !ok {
		return "", fmt.Errorf("--broker %q: use %s", broker, strings.Join(slices.Sorted(maps.Keys(brokers)), ", "))
	}
	url, ok := stores[database]
	if !ok {
		return "", fmt.Errorf("--database %q: use %s", database, strings.Join(slices.Sorted(maps.Keys(stores)), ", "))
	}
	return strings.NewReplacer("{{SOURCE}}", source, "{{DATABASE}}", url, "{{TOPIC}}", topics[broker]).Replace(example), nil
}

// topics are what the relay of an example publishes to.
var topics = map[string]string{
	"embedded": "orders.stock.taken", "nats": "orders.stock.taken", "kafka": "stock-taken", "rabbitmq": "stock-taken", "amqp10": "stock-taken", "redis": "stock-taken",
}

const example = `# A consumer of sekali run. Check it with sekali run --check; docs/run.md has all fields.
# ${NAME} and ${NAME:-default} are values of the environment.

# Whose effect it is: with another name everything that the broker still has
# takes effect again.
consumer: stock-service

source:
{{SOURCE}}
# Keys and business data are in one database. Its tables:
#   sekali migrate up --database …
#   CREATE TABLE stock (sku VARCHAR(20) PRIMARY KEY, quantity BIGINT NOT NULL);
database: {{DATABASE}}

# Where the message key is: what makes two deliveries the same message. Best is an
# id that the producer made when the event happened.
key:
  first_of:
    - header: idempotency-key
    - json: /event_id
  # others: message_id, cloud_event, debezium, {business: [{json: /order}, {literal: paid}]},
  #         {scoped: {scope: tenant-1, key: …}}, {fold_uuid: …}

# An expression (CEL) over body, headers, key, topic, id, time and vars. A message
# for which it is false is recorded and has no effect.
when: body.type == "paid"

# Statements run in the transaction that holds the key: all, or none. :name is a
# parameter, an expression gives its value. A field that is missing makes the
# message a dead letter; has(body.x), or body.?x.orValue(0), where it may be.
handle:
  - sql: UPDATE stock SET quantity = quantity - :quantity WHERE sku = :sku
    params:
      quantity: body.quantity
      sku: body.sku
    rows: 1                     # else it is a dead letter
    # when: body.quantity > 0

# HTTP outside of the transaction, once: under an idempotency key that is the same
# for ever. Statements see its answer as effects.label.body.
# effects:
#   - name: label
#     url: https://courier.example/orders/{order}/labels
#     params: {order: body.order}
#     headers: {Authorization: "Bearer ${COURIER_TOKEN}"}
#     json: {sku: body.sku, to: body.address}
#     repeat_for: 23h           # how long the courier knows keys; without it, what is unknown is parked

# Events that are published if, and only if, the transaction commits.
# publish:
#   - topic: {{TOPIC}}
#     key: body.sku
#     json: {sku: body.sku, taken: body.quantity}

# order: body.sku               # messages of a key one after another
# order_in_process_only: true   # where the broker gives lanes to many instances
# on_blocked: hold_key          # later messages of a key wait behind a dead letter
# version: {entity: body.sku, version: body.version}   # older states are skipped
# fingerprint: json             # the same key with another body is a conflict

workers: 4                      # transactions at once
batch: {size: 100}              # messages that may share one
retries: {attempts: 10, initial: 100ms, max: 1m}
# dead_letters: {url: "${SEKALI_BROKER_URL}", topic: orders-dead}   # default: the database
http:
  listen: ${SEKALI_LISTEN:-127.0.0.1:9464}   # /metrics for Prometheus, /healthz, /readyz
drain_timeout: 30s
log: text                       # or json
`
