"""A producer as people write it: by the client library that they use.

producer.py URL TOPIC: takes lines of JSON from its standard input, {"key": …,
"body": …}, the body as text, publishes each under the header idempotency-key, and says "sent N"
once the broker has confirmed all of them. What is not confirmed it sends again.
"""
import asyncio
import json
import sys
from urllib.parse import urlparse


def messages():
    for line in sys.stdin:
        m = json.loads(line)
        yield m["key"], m["body"].encode()


def kafka(url, topic):
    from confluent_kafka import Producer

    failed = []
    producer = Producer({"bootstrap.servers": url.netloc, "enable.idempotence": True, "linger.ms": 5})
    n = 0
    for key, body in messages():
        order = json.loads(body)["sku"]
        while True:
            try:
                producer.produce(topic, body, key=order, headers={"idempotency-key": key.encode()},
                                 on_delivery=lambda err, _: failed.append(err) if err else None)
                break
            except BufferError:
                producer.poll(0.1)
        n += 1
    left = producer.flush(60)
    if failed or left:
        sys.exit("not confirmed: %s, %d left" % (failed[:3], left))
    return n


def rabbitmq(url, queue):
    import pika

    at = pika.ConnectionParameters(url.hostname, url.port, credentials=pika.PlainCredentials(url.username, url.password))
    connection = pika.BlockingConnection(at)
    channel = connection.channel()
    channel.confirm_delivery()
    n = 0
    for key, body in messages():
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, headers={"idempotency-key": key}), mandatory=True)
        n += 1
    connection.close()
    return n


async def nats(url, subject):
    import nats

    connection = await nats.connect(url.geturl(), allow_reconnect=True, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    js = connection.jetstream()
    n = 0
    for key, body in messages():
        while True:
            try:
                await js.publish(subject, body, timeout=2, headers={"idempotency-key": key})
                break
            except Exception as e:  # the broker was killed: nobody knows whether it has it
                print("again:", repr(e), file=sys.stderr)
                await asyncio.sleep(0.05)
        n += 1
    await connection.close()
    return n


url, topic = urlparse(sys.argv[1]), sys.argv[2]
if url.scheme == "kafka":
    sent = kafka(url, topic)
elif url.scheme == "rabbitmq":
    sent = rabbitmq(url, topic)
else:
    sent = asyncio.run(nats(url, topic))
print("sent", sent)
