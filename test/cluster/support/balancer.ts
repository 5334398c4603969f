// A Service's part for a test: takes TCP connections and passes each new one on to an endpoint that is ready, as its probe
// says. Arguments: its port, a port where it says in plain HTTP which endpoints those are, then PORT:PROBE-PORT of each.
import { createServer as createHttpServer } from 'node:http';
import { connect, createServer, type Socket } from 'node:net';

const HOST = '127.0.0.1';
/** Of the probes; as long a change of endpoints takes to get to a node. */
const EVERY_MS = 500;

const [port, statusPort, ...pairs] = process.argv.slice(2);
const endpoints = pairs.map((pair) => {
  const [own = 0, probe = 0] = pair.split(':').map(Number);
  return { port: own, probe, isReady: false };
});
const ready = () => endpoints.filter(({ isReady }) => isReady).map((endpoint) => endpoint.port);

const look = async () => {
  for (const endpoint of endpoints) {
    const answer = await fetch(`http://${HOST}:${endpoint.probe}/readyz`).catch(() => undefined);
    endpoint.isReady = answer?.ok === true;
  }
  setTimeout(() => void look(), EVERY_MS);
};

let turn = 0;
const pass = (from: Socket) => {
  from.on('error', () => from.destroy());
  const chosen = ready()[turn++ % Math.max(1, ready().length)];
  if (chosen === undefined) return void from.destroy();
  const to = connect(chosen, HOST);
  to.on('error', () => from.destroy());
  from.on('close', () => to.destroy());
  from.pipe(to).pipe(from);
};

createServer({ noDelay: true }, pass).listen(Number(port), HOST);
createHttpServer((_, response) => response.end(ready().join(' '))).listen(Number(statusPort), HOST);
await look();
