// A small fake API server: it listens, keeps watches open and returns what the test says, including responses that no
// real server would send. The objects are the test's part; test/cluster uses a real server.
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { KubeConfig } from '@kubernetes/client-node';
import type { Teardown } from '../native/node.ts';

export type Asked = {
  readonly method: string;
  readonly url: URL;
  readonly headers: IncomingHttpHeaders;
  readonly isWatch: boolean;
  /** JSON body of the request. */
  body(): Promise<unknown>;
};

export const answer = (response: ServerResponse, status: number, body: object): void => {
  response.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(body));
};

export const refuse = (response: ServerResponse, code: number, message = 'on purpose'): void =>
  answer(response, code, { kind: 'Status', apiVersion: 'v1', status: 'Failure', message, code });

/** A list and the resource version at which its watch continues. */
export const answerList = (response: ServerResponse, items: readonly object[], resourceVersion = '1'): void =>
  answer(response, 200, { kind: 'List', apiVersion: 'v1', metadata: { resourceVersion }, items });

export type Watchers = {
  readonly open: ReadonlySet<ServerResponse>;
  /** The response to a watch, which stays open. */
  add(response: ServerResponse): void;
  send(type: string, object: object): void;
  hangUp(): void;
};

export function watchers(): Watchers {
  const open = new Set<ServerResponse>();
  return {
    open,
    add(response) {
      response.writeHead(200, { 'Content-Type': 'application/json' }).flushHeaders();
      open.add(response);
      response.on('close', () => open.delete(response));
    },
    send(type, object) {
      for (const response of open) response.write(`${JSON.stringify({ type, object })}\n`);
    },
    hangUp() {
      for (const response of open) response.end();
      open.clear();
    },
  };
}

export type ApiServer = {
  /** A kubeconfig for clients; every request is allowed. */
  readonly config: KubeConfig;
  /** Stops answering. */
  close(): void;
};

/** Serves until the test ends. */
export async function startApiServer(
  t: Teardown,
  serve: (asked: Asked, response: ServerResponse) => unknown,
): Promise<ApiServer> {
  const server = createServer((request, response) => {
    const url = new URL(request.url ?? '/', 'http://api');
    const asked: Asked = {
      method: request.method ?? '',
      url,
      headers: request.headers,
      isWatch: url.searchParams.get('watch') === 'true',
      body: async () => JSON.parse(await text(request)) as unknown,
    };
    void serve(asked, response);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  t.teardown(close);
  const config = new KubeConfig();
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  config.loadFromClusterAndUser({ name: 'c', server: url, skipTLSVerify: true }, { name: 'u' });
  return { config, close };
}
