// A server of the benchmark over TLS, in a process of its own: `node servers.ts webhook|noop CERT KEY` prints its port.
// `noop` reads a review and answers a fixed text: what Node's HTTPS takes by itself.
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { createLogger } from '../../../src/common/logger.ts';
import { fromFiles } from '../../../src/serving/tls-files.ts';
import { startWebhook } from '../../../webhook/server.ts';
import { configured } from '../../unit/webhook/reviews.ts';

const [kind, certFile = '', keyFile = ''] = process.argv.slice(2);

async function webhookPort(): Promise<number> {
  const configuration = configured();
  const logger = createLogger({ component: 'webhook', level: 'error' });
  const { port } = await startWebhook({
    configuration: () => configuration,
    logger,
    host: '127.0.0.1',
    certificate: fromFiles({ certFile, keyFile }),
  });
  return port;
}

function noopPort(): Promise<number> {
  const answer = JSON.stringify({ response: { uid: 'u', allowed: true } });
  const server = createServer(
    { cert: readFileSync(certFile), key: readFileSync(keyFile), minVersion: 'TLSv1.3' },
    (request, response) => {
      request.resume().on('end', () => response.writeHead(200, { 'content-length': answer.length }).end(answer));
    },
  );
  return new Promise((resolve) => {
    server.listen(0, '127.0.0.1', () => resolve((server.address() as AddressInfo).port));
  });
}

console.log(kind === 'noop' ? await noopPort() : await webhookPort());
