// Client of the API server for the CLI: connection and user, GET, for `set` a merge patch, and for `defrag` evictions. Answers are plain
// JSON; a refusal is a value, since least rights are normal, and a server that does not answer is an error for the
// reader.
import { request as plainRequest } from 'node:http';
import { type RequestOptions, request as tlsRequest } from 'node:https';
import { describeApiError } from '../../kube/api-error.ts';
import { Refused, UsageError } from '../lib/command.ts';
import { loadKubeconfig, optionsOf } from './kubeconfig.ts';

export type Refusal = { readonly ok: false; readonly status: number; readonly message: string };
export type Got<T> = { readonly ok: true; readonly value: T } | Refusal;

/** The value, without which the command cannot go on. */
export function granted<T>(got: Got<T>): T {
  if (!got.ok) throw new Refused(got.message);
  return got.value;
}

export type Cluster = {
  readonly server: string;
  /** The context's namespace. */
  readonly namespace: string;
  /** One object, by its path. */
  get<T>(path: string): Promise<Got<T>>;
  /** Sends a merge patch for one object. */
  patch<T>(path: string, body: unknown): Promise<Got<T>>;
  /** Creates an object at the path of its list, or of a subresource. */
  post<T>(path: string, body: unknown): Promise<Got<T>>;
  /** All objects of a list, page by page. */
  list<T>(path: string, query?: Readonly<Record<string, string>>): Promise<Got<readonly T[]>>;
  /** Calls `onItem` with each object of a list, and keeps none. */
  each<T>(path: string, query: Readonly<Record<string, string>>, onItem: (item: T) => void): Promise<Got<undefined>>;
  /** Text that the API server proxies. A refusal of status 0: no answer in time, or an answer that is too long. */
  text(path: string, headers?: Readonly<Record<string, string>>): Promise<Got<string>>;
};

type Answer = { readonly status: number; readonly body: string };

const TIMEOUT_MS = 15_000;
const PROXY_TIMEOUT_MS = 5000;
const PAGE = 500;
/** Limit of a text from an agent. A node of 16 GPUs with 50 tenants each sends half of it. */
const LONGEST_TEXT = 8 * 2 ** 20;

/** What kubectl's options of these names say. */
type ConnectOptions = {
  readonly cluster?: string | undefined;
  readonly as?: { readonly user: string; readonly groups: readonly string[] };
  /** For each request; 0: none. */
  readonly timeoutMs?: number | undefined;
};

export async function connect(
  file: string | undefined,
  context: string | undefined,
  { cluster, as, timeoutMs }: ConnectOptions = {},
): Promise<Cluster> {
  const { config, from } = await loadKubeconfig(file);
  if (context !== undefined) {
    if (!config.getContextObject(context)) {
      const known = config.getContexts().map(({ name }) => name);
      throw new UsageError(`${from}: no context ${context}; there are ${known.join(', ') || 'none'}`);
    }
    config.setCurrentContext(context);
  }
  const namespace = config.getContextObject(config.getCurrentContext())?.namespace || 'default';
  if (cluster !== undefined) {
    if (!config.getCluster(cluster)) {
      const known = config.getClusters().map(({ name }) => name);
      throw new UsageError(`${from}: no cluster ${cluster}; there are ${known.join(', ') || 'none'}`);
    }
    const user = config.getContextObject(config.getCurrentContext())?.user ?? '';
    config.addContext({ name: `${cluster} by --cluster`, cluster, user });
    config.setCurrentContext(`${cluster} by --cluster`);
  }
  const server = config.getCurrentCluster()?.server;
  if (!server) {
    throw new UsageError(`${from}: its current context names no cluster; choose one with --context`);
  }
  const options = await optionsOf(config, from);
  if (as !== undefined) {
    const groups = as.groups.length > 0 && { 'Impersonate-Group': [...as.groups] };
    options.headers = { ...options.headers, 'Impersonate-User': as.user, ...groups };
  }
  return clusterAt(server, namespace, { options, timeoutMs });
}

type Connection = { readonly options: RequestOptions; readonly timeoutMs: number | undefined };

type Limits = { readonly timeoutMs: number; readonly mostBytes?: number };

type Write = { readonly method: 'PATCH' | 'POST'; readonly body: string };
const TYPES = { PATCH: 'application/merge-patch+json', POST: 'application/json' };

/** The answer to a GET, or to a request that writes. */
function answerOf(url: URL, options: RequestOptions, limits: Limits, write?: Write): Promise<Answer> {
  const { timeoutMs, mostBytes = Number.POSITIVE_INFINITY } = limits;
  const send = url.protocol === 'http:' ? plainRequest : tlsRequest;
  return new Promise((resolve, reject) => {
    const method = write?.method ?? 'GET';
    const headers = { ...options.headers, ...(write && { 'Content-Type': TYPES[write.method] }) };
    const limited = timeoutMs > 0 && { signal: AbortSignal.timeout(timeoutMs) };
    const call = send(url, { ...options, method, headers, ...limited }, (response) => {
      const parts: Buffer[] = [];
      let length = 0;
      response.on('data', (part: Buffer) => {
        length += part.length;
        if (length > mostBytes) response.destroy(new Error(`its answer is longer than ${mostBytes / 2 ** 20} MiB`));
        else parts.push(part);
      });
      response.on('error', reject);
      response.on('end', () =>
        resolve({ status: response.statusCode ?? 0, body: Buffer.concat(parts).toString('utf8') }),
      );
    });
    call.on('error', reject);
    call.end(write?.body);
  });
}

const withHeaders = (options: RequestOptions, more: Readonly<Record<string, string>> = {}): RequestOptions => ({
  ...options,
  headers: { ...options.headers, ...more },
});

function clusterAt(server: string, namespace: string, { options, timeoutMs = TIMEOUT_MS }: Connection): Cluster {
  const base = server.replace(/\/+$/, '');
  const ask = (path: string, limits: Limits, write?: Write): Promise<Answer> =>
    answerOf(new URL(`${base}${path}`), options, limits, write);
  const json = async <T>(path: string, write?: Write): Promise<Got<T>> => {
    let answer: Answer;
    try {
      answer = await ask(path, { timeoutMs }, write);
    } catch (error) {
      const why = whyNot(error, timeoutMs);
      throw new UsageError(`no API server answers at ${base} (${why}); is this the right kubeconfig?`);
    }
    if (answer.status === 401) throw new UsageError(`${base} does not accept these credentials (status 401)`);
    if (answer.status !== 200 && answer.status !== 201) return refusalOf(answer);
    try {
      return { ok: true, value: JSON.parse(answer.body) as T };
    } catch {
      throw new UsageError(`${base} answers what is not JSON; is it an API server?`);
    }
  };
  const each: Cluster['each'] = async <T>(
    path: string,
    query: Readonly<Record<string, string>>,
    onItem: (item: T) => void,
  ) => {
    let next = '';
    do {
      const parameters = new URLSearchParams({ limit: String(PAGE), ...query, ...(next && { continue: next }) });
      const got = await json<{ items?: readonly T[] | null; metadata?: { continue?: string } }>(
        `${path}?${parameters}`,
      );
      if (!got.ok) return got;
      for (const item of got.value.items ?? []) onItem(item);
      next = got.value.metadata?.continue ?? '';
    } while (next !== '');
    return { ok: true, value: undefined };
  };
  return {
    server: base,
    namespace,
    get: (path) => json(path),
    patch: (path, body) => json(path, { method: 'PATCH', body: JSON.stringify(body) }),
    post: (path, body) => json(path, { method: 'POST', body: JSON.stringify(body) }),
    each,
    async list<T>(path: string, query: Readonly<Record<string, string>> = {}) {
      const items: T[] = [];
      const got = await each<T>(path, query, (item) => items.push(item));
      return got.ok ? { ok: true, value: items } : got;
    },
    async text(path, headers) {
      try {
        const limits = { timeoutMs: PROXY_TIMEOUT_MS, mostBytes: LONGEST_TEXT };
        const answer = await answerOf(new URL(`${base}${path}`), withHeaders(options, headers), limits);
        return answer.status === 200 ? { ok: true, value: answer.body } : refusalOf(answer);
      } catch (error) {
        return { ok: false, status: 0, message: whyNot(error, PROXY_TIMEOUT_MS) };
      }
    },
  };
}

function refusalOf({ status, body }: Answer): Refusal {
  return { ok: false, status, message: describeApiError({ body: body.trim(), message: 'no message' }) };
}

function whyNot(error: unknown, timeoutMs: number): string {
  const { code, message } = error as NodeJS.ErrnoException;
  return code === 'ABORT_ERR' ? `no answer within ${timeoutMs / 1000} s` : (code ?? message);
}
