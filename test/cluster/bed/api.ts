// A client of the test cluster's API server for programs outside its network: requests over a unix socket, as the
// administrator. It costs a hundredth of a kubectl, so tests can poll often and watch changes.
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';

export type Answer = { readonly status: number; readonly body: unknown };
export type WatchEvent<T> = { readonly type: string; readonly object: T };

/** The impersonated user. Its groups decide which roles apply; `system:masters` is allowed everything. */
export type User = {
  readonly name: string;
  readonly groups: readonly string[];
  readonly extra?: Readonly<Record<string, string>>;
};

export type Api = {
  /** Any request, as the administrator or another user; returns a response of any status. */
  ask(method: string, path: string, body?: object, as?: User): Promise<Answer>;
  /** The body of an answer that says that it was done; rejects with the server's message for any other. */
  must<T = unknown>(method: string, path: string, body?: object): Promise<T>;
  /** The object, or undefined if it does not exist; rejects with the server's message for any other status. */
  get<T>(path: string): Promise<T | undefined>;
  /** Calls `seen` for each change after `resourceVersion`, until `signal` aborts; rejects if the server ends the watch
   * earlier. */
  watch<T>(
    path: string,
    resourceVersion: string,
    seen: (event: WatchEvent<T>) => void,
    signal: AbortSignal,
  ): Promise<void>;
};

export function bedApi(socketPath: string): Api {
  const send = async (
    method: string,
    path: string,
    body?: object,
    signal?: AbortSignal,
    as?: User,
  ): Promise<IncomingMessage> => {
    const outgoing = request({
      socketPath,
      method,
      path,
      ...(signal && { signal }),
      headers: {
        host: 'localhost',
        ...(body && { 'content-type': contentType(method) }),
        ...(as && impersonation(as)),
      },
    });
    outgoing.end(body && JSON.stringify(body));
    const [incoming] = (await once(outgoing, 'response')) as [IncomingMessage];
    return incoming;
  };
  const ask: Api['ask'] = async (method, path, body, as) => {
    const incoming = await send(method, path, body, undefined, as);
    const said = await text(incoming);
    const isJson = incoming.headers['content-type']?.startsWith('application/json') === true;
    return { status: incoming.statusCode ?? 0, body: isJson ? JSON.parse(said) : said };
  };
  return {
    ask,
    async must<T>(method: string, path: string, body?: object) {
      const answer = await ask(method, path, body);
      if (answer.status >= 300) throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
      return answer.body as T;
    },
    async get<T>(path: string) {
      const { status, body } = await ask('GET', path);
      if (status === 404) return undefined;
      if (status !== 200) throw new Error(`GET ${path}: ${status} ${JSON.stringify(body)}`);
      return body as T;
    },
    async watch<T>(
      path: string,
      resourceVersion: string,
      seen: (event: WatchEvent<T>) => void,
      signal: AbortSignal,
    ): Promise<void> {
      const query = `watch=true&resourceVersion=${resourceVersion}`;
      try {
        const incoming = await send('GET', `${path}${path.includes('?') ? '&' : '?'}${query}`, undefined, signal);
        if (incoming.statusCode !== 200) throw new Error(`watching ${path}: ${await text(incoming)}`);
        for await (const line of createInterface({ input: incoming })) seen(JSON.parse(line) as WatchEvent<T>);
      } catch (error) {
        if (!signal.aborted) throw error;
      }
      if (!signal.aborted) throw new Error(`the server ended the watch of ${path}`);
    },
  };
}

const contentType = (method: string): string =>
  method === 'PATCH' ? 'application/merge-patch+json' : 'application/json';

const impersonation = ({ name, groups, extra = {} }: User): Record<string, string | string[]> => ({
  'impersonate-user': name,
  'impersonate-group': [...groups],
  ...Object.fromEntries(
    Object.entries(extra).map(([key, value]) => [`impersonate-extra-${encodeURIComponent(key)}`, value]),
  ),
});
