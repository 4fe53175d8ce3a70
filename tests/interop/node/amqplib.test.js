'use strict';
// amqplib against the broker at AMQP_URL; run by test_node_amqplib.py through node's test runner.

const assert = require('node:assert');
const { once } = require('node:events');
const { after, before, test } = require('node:test');
const amqp = require('amqplib');

const url = process.env.AMQP_URL;
let connection;

before(async () => {
  connection = await amqp.connect(url);
});

after(async () => {
  await connection.close();
});

function name(word) {
  return `node-${word}-${process.pid}-${Math.random().toString(36).slice(2)}`;
}

async function take(channel, queue, count) {
  const messages = [];
  await new Promise((resolve, reject) => {
    channel
      .consume(queue, (message) => {
        if (message === null) return reject(new Error('the consumer was cancelled'));
        messages.push(message);
        channel.ack(message);
        if (messages.length === count) resolve();
      })
      .catch(reject);
  });
  return messages;
}

test('properties and headers come back', async () => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue('', { exclusive: true });
  const headers = { text: 'grüße', number: 2 ** 40, list: [1, 'two'], table: { a: true } };
  const options = {
    headers, contentType: 'text/plain', priority: 3, correlationId: 'c', replyTo: 'r',
    messageId: 'm', timestamp: 1700000000, type: 't', appId: 'a', persistent: true,
  };
  channel.sendToQueue(queue, Buffer.from('hello'), options);
  const [message] = await take(channel, queue, 1);
  assert.strictEqual(message.content.toString(), 'hello');
  assert.deepStrictEqual(message.properties.headers, headers);
  assert.strictEqual(message.properties.deliveryMode, 2);
  for (const key of ['contentType', 'priority', 'correlationId', 'replyTo', 'timestamp', 'type']) {
    assert.strictEqual(message.properties[key], options[key], key);
  }
  await channel.close();
});

test('confirms settle every publish', async () => {
  const channel = await connection.createConfirmChannel();
  const { queue } = await channel.assertQueue('', { exclusive: true });
  for (let n = 0; n < 1000; n += 1) channel.sendToQueue(queue, Buffer.from(String(n)));
  await channel.waitForConfirms();
  const messages = await take(channel, queue, 1000);
  assert.deepStrictEqual(
    messages.map((message) => Number(message.content.toString())),
    [...Array(1000).keys()],
  );
  await channel.close();
});

test('a full queue that rejects nacks', async () => {
  const channel = await connection.createConfirmChannel();
  const { queue } = await channel.assertQueue('', {
    exclusive: true, arguments: { 'x-max-length': 1, 'x-overflow': 'reject-publish' },
  });
  channel.sendToQueue(queue, Buffer.from('first'));
  await channel.waitForConfirms();
  channel.sendToQueue(queue, Buffer.from('second'));
  await assert.rejects(channel.waitForConfirms(), /nack/);
  await channel.close();
});

test('ten megabytes come back', async () => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue('', { exclusive: true });
  const body = Buffer.alloc(10_000_000, 'abcdefg');
  channel.sendToQueue(queue, body);
  const [message] = await take(channel, queue, 1);
  assert.ok(body.equals(message.content));
  await channel.close();
});

test('a mandatory message without a queue is returned', async () => {
  const channel = await connection.createChannel();
  const returned = once(channel, 'return');
  channel.publish('', name('nowhere'), Buffer.from('x'), { mandatory: true });
  const [message] = await returned;
  assert.strictEqual(message.fields.replyCode, 312);
  assert.strictEqual(message.fields.replyText, 'NO_ROUTE');
  await channel.close();
});

test('errors name the operation, and the connection goes on', async () => {
  const channel = await connection.createChannel();
  const failed = once(channel, 'error');
  const missing = name('missing');
  await assert.rejects(channel.checkQueue(missing), /404 \(NOT-FOUND\)/);
  const [error] = await failed;
  assert.strictEqual(error.code, 404);
  assert.deepStrictEqual([error.classId, error.methodId], [50, 10]);
  const again = await connection.createChannel();
  await again.assertQueue('', { exclusive: true });
  await again.close();
});

test('an inequivalent declaration is refused with 406', async () => {
  const channel = await connection.createChannel();
  channel.on('error', () => {});
  const exchange = name('exchange');
  await channel.assertExchange(exchange, 'direct', { autoDelete: true });
  await assert.rejects(channel.assertExchange(exchange, 'fanout', { autoDelete: true }), /406/);
});

test('a bad password is refused', async () => {
  const bad = new URL(url);
  bad.password = 'wrong';
  await assert.rejects(amqp.connect(bad.toString()), /ACCESS[_-]REFUSED/);
});

test('rpc over direct reply-to', async () => {
  const server = await connection.createChannel();
  const { queue } = await server.assertQueue('', { exclusive: true });
  await server.consume(queue, (request) => {
    const answer = Buffer.from(String(Number(request.content.toString()) * 2));
    server.sendToQueue(request.properties.replyTo, answer, {
      correlationId: request.properties.correlationId,
    });
    server.ack(request);
  });
  const caller = await connection.createChannel();
  const answer = await new Promise((resolve, reject) => {
    caller
      .consume('amq.rabbitmq.reply-to', resolve, { noAck: true })
      .then(() => {
        caller.sendToQueue(queue, Buffer.from('21'), {
          replyTo: 'amq.rabbitmq.reply-to', correlationId: '7',
        });
      })
      .catch(reject);
  });
  assert.strictEqual(answer.content.toString(), '42');
  assert.strictEqual(answer.properties.correlationId, '7');
  await server.close();
  await caller.close();
});

test('prefetch, nack and requeue', async () => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue('', { exclusive: true });
  await channel.prefetch(1);
  for (const body of ['a', 'b', 'c']) channel.sendToQueue(queue, Buffer.from(body));
  const seen = [];
  await new Promise((resolve, reject) => {
    channel
      .consume(queue, (message) => {
        seen.push([message.content.toString(), message.fields.redelivered]);
        if (seen.length === 1) channel.nack(message);
        else channel.ack(message);
        if (seen.length === 4) resolve();
      })
      .catch(reject);
  });
  assert.deepStrictEqual(seen, [['a', false], ['a', true], ['b', false], ['c', false]]);
  await channel.close();
});

test('exchange to exchange bindings', async () => {
  const channel = await connection.createChannel();
  const [source, sink] = [name('source'), name('sink')];
  await channel.assertExchange(source, 'topic', { autoDelete: true });
  await channel.assertExchange(sink, 'fanout', { autoDelete: true });
  const { queue } = await channel.assertQueue('', { exclusive: true });
  await channel.bindQueue(queue, sink, '');
  await channel.bindExchange(sink, source, 'a.*');
  channel.publish(source, 'a.b', Buffer.from('through'));
  const [message] = await take(channel, queue, 1);
  assert.strictEqual(message.fields.exchange, source);
  await channel.unbindExchange(sink, source, 'a.*');
  await channel.close();
});

test('a consumer is told of its queue being deleted', async () => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue(name('doomed'), { durable: false });
  let told;
  const cancelled = new Promise((resolve) => { told = resolve; });
  await channel.consume(queue, told);
  const other = await connection.createChannel();
  await other.deleteQueue(queue);
  assert.strictEqual(await cancelled, null);
});

test('a hundred channels at once', async () => {
  const channels = await Promise.all(
    Array.from({ length: 100 }, () => connection.createChannel()),
  );
  const queues = await Promise.all(
    channels.map((channel) => channel.assertQueue('', { exclusive: true })),
  );
  assert.strictEqual(new Set(queues.map(({ queue }) => queue)).size, 100);
  await Promise.all(channels.map((channel) => channel.close()));
});
