// A TLS client that shows what an API server would see of the webhook: which connection, which certificate, raw
// sockets.
import { once } from 'node:events';
import { Agent, type RequestOptions, request } from 'node:https';
import { connect, type TLSSocket } from 'node:tls';
import type { Webhook } from '../../../webhook/server.ts';

export type Reply = {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  text: string;
  /** The connection's local port: the same for two replies means that it was reused. */
  connection: number | undefined;
  serialNumber: string;
  httpVersion: string;
};

/** An agent that keeps one connection and trusts the webhook's certificate alone. */
export function trusting(ca: string): Agent {
  return new Agent({ ca, keepAlive: true, maxSockets: 1, servername: 'localhost' });
}

/** Posts a body and reads the whole reply. */
export async function post(
  webhook: Webhook,
  agent: Agent,
  path: string,
  body: string | Buffer,
  headers: Record<string, string> = { 'content-type': 'application/json' },
): Promise<Reply> {
  const options: RequestOptions = {
    method: 'POST',
    agent,
    headers: { 'content-length': Buffer.byteLength(body), ...headers },
  };
  const outgoing = request(`${webhook.url}${path}`, options);
  // A server that answers before it has read everything may close while we still write.
  outgoing.on('error', () => {});
  outgoing.end(body);
  const [incoming] = (await once(outgoing, 'response')) as [import('node:http').IncomingMessage];
  const socket = incoming.socket as TLSSocket;
  const connection = socket.localPort;
  const { serialNumber } = socket.getPeerCertificate();
  let text = '';
  for await (const part of incoming.setEncoding('utf8')) text += part;
  const { statusCode: status = 0, headers: received, httpVersion } = incoming;
  return { status, headers: received, text, connection, serialNumber, httpVersion };
}

export type RawConnection = {
  socket: TLSSocket;
  received: () => string;
  /** Resolves once the text has arrived; rejects when the connection ends without it. */
  until: (text: string) => Promise<void>;
  ended: Promise<void>;
};

/** A bare TLS connection, for requests that are cut off or slow. */
export async function connectRaw(webhook: Webhook, more: { maxVersion?: 'TLSv1.2'; ALPNProtocols?: string[] } = {}) {
  const socket = connect({
    host: '127.0.0.1',
    port: webhook.port,
    ca: webhook.certificate,
    servername: 'localhost',
    ...more,
  });
  let text = '';
  socket.setEncoding('utf8').on('data', (part: string) => {
    text += part;
  });
  await once(socket, 'secureConnect');
  const ended = new Promise<void>((resolve) => socket.once('close', () => resolve()));
  socket.on('error', () => {});
  const until = async (wanted: string) => {
    while (!text.includes(wanted)) {
      if (socket.destroyed) throw new Error(`the connection ended with: ${text}`);
      await Promise.race([once(socket, 'data'), ended]);
    }
  };
  return { socket, received: () => text, until, ended } satisfies RawConnection;
}
