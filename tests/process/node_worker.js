// A publisher or consumer with amqplib, for workers.py: what happens goes to standard output, a JSON
// object a line. It publishes until its standard input ends; a consumer then ends too.
//
//   node node_worker.js publish|consume NAME QUEUE HOST:PORT...
'use strict';

const amqp = require('amqplib');

const PREFETCH = 20;
const PAUSE_MS = 50;
const [role, name, queue, ...addresses] = process.argv.slice(2);
let going = true;
let turn = 0;

const tell = (what) => process.stdout.write(JSON.stringify(what) + '\n');
const pause = () => new Promise((resolve) => setTimeout(resolve, PAUSE_MS));

process.stdin.on('end', () => { going = false; });
process.stdin.resume();

// A connection and the promise that it breaks, with the reason.
async function connected(channelOf) {
  while (going) {
    const address = addresses[turn++ % addresses.length];
    try {
      const url = `amqp://guest:guest@${address}/?heartbeat=5`;
      const connection = await amqp.connect(url, { timeout: 5000 });
      const broken = new Promise((resolve) => connection.on('close', resolve));
      connection.on('error', () => {});
      const channel = await Promise.race([channelOf(connection), broken]);
      if (channel && channel.connection) {
        channel.on('error', (error) => tell({ error: `${name}: ${error.message}` }));
        return { connection, channel, broken, address };
      }
    } catch (error) {
      // Another broker, then.
    }
    await pause();
  }
  return null;
}

function confirmation(channel, body) {
  return new Promise((resolve) => {
    const properties = { persistent: true };
    channel.sendToQueue(queue, Buffer.from(body), properties, (error) => {
      resolve(error ? 'nacked' : 'confirmed');
    });
  });
}

async function publish() {
  let number = 0;
  let tried = false;
  while (going) {
    const life = await connected((connection) => connection.createConfirmChannel());
    if (!life) break;
    const lost = life.broken.then(() => 'lost');
    while (going) {
      const body = `${name} ${number}`;
      if (tried) tell({ resent: body });
      tried = true;
      let outcome;
      try {
        outcome = await Promise.race([confirmation(life.channel, body), lost]);
      } catch (error) {
        outcome = 'lost';
      }
      // What is unconfirmed when the connection ends is reported as an error too.
      if (outcome !== 'confirmed') {
        if (await Promise.race([lost, pause()]) !== 'lost') tell({ error: `${body} was nacked` });
        break;
      }
      tell({ confirmed: body });
      tried = false;
      number += 1;
    }
    await life.connection.close().catch(() => {});
  }
}

async function consume() {
  let lives = 0;
  while (going) {
    const life = await connected((connection) => connection.createChannel());
    if (!life) break;
    const label = `${name}/${++lives}`;
    const take = (message) => {
      if (message === null) return;
      const { redelivered } = message.fields;
      tell({ got: message.content.toString(), life: label, redelivered, at: life.address });
      try {
        life.channel.ack(message);
      } catch (error) {
        // The connection has just ended.
      }
    };
    let ended = false;
    life.broken.then(() => { ended = true; });
    try {
      await life.channel.prefetch(PREFETCH);
      await life.channel.consume(queue, take);
    } catch (error) {
      // As above.
    }
    while (going && !ended) await pause();
    if (ended) tell({ broken: label });
    await life.connection.close().catch(() => {});
  }
}

(role === 'publish' ? publish() : consume()).then(
  () => process.exit(0),
  (error) => { tell({ error: `${name}: ${error.stack}` }); process.exit(1); },
);
