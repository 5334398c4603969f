// Calls to the API server over shared connections, each with a time that it may take, its body included. A write
// without an answer may still be carried out; its caller must find out.
import { type Dispatcher, request } from 'undici';
import type { ApiConfig } from './config.ts';
import { withKeptConnections } from './connections.ts';

export const ANSWER_MS = 5000;

export type Query = Readonly<Record<string, string>>;

const PATCHES = {
  merge: 'application/merge-patch+json',
  strategic: 'application/strategic-merge-patch+json',
  json: 'application/json-patch+json',
  apply: 'application/apply-patch+yaml',
} as const;

type Call = {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH';
  /** E.g. `/api/v1/nodes`. */
  readonly path: string;
  readonly query?: Query;
  readonly body?: unknown;
  /** How a PATCH's body is applied. */
  readonly patch?: keyof typeof PATCHES;
  readonly withinMs?: number;
};

/** An answer with another status than 2xx. */
class ApiError extends Error {
  readonly code: number;
  readonly body: string;
  readonly headers: Readonly<Record<string, unknown>>;
  constructor(code: number, body: string, headers: Readonly<Record<string, unknown>>) {
    super(`the API server answered with status ${code}`);
    [this.code, this.body, this.headers] = [code, body, headers];
  }
}

/** The answer, not validated. Rejects with an ApiError, or with what kept the API server from answering as `cause`. */
export async function callApi<T>(config: ApiConfig, call: Call): Promise<T> {
  const { withinMs = ANSWER_MS } = call;
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(new Error(`no answer within ${withinMs / 1000} s`)), withinMs);
  try {
    const answer = await openCall(config, call, late.signal);
    return (await answer.json()) as T;
  } catch (error) {
    if (error instanceof ApiError || error === late.signal.reason) throw error;
    // That no address of a name takes connections is an error without a message.
    const { message, code } = error as NodeJS.ErrnoException;
    throw new Error(message || code, { cause: error });
  } finally {
    clearTimeout(timer);
  }
}

/** The body of an answer that is read as it arrives (json-stream.ts). */
export const getStream = (
  config: ApiConfig,
  path: string,
  query: Query,
  signal: AbortSignal,
): Promise<AsyncIterable<Uint8Array>> => openCall(config, { method: 'GET', path, query }, signal);

async function openCall(config: ApiConfig, { method, path, query, body, patch }: Call, signal: AbortSignal) {
  const search = query ? `?${new URLSearchParams(query)}` : '';
  const headers: Record<string, string> = { 'User-Agent': 'cotenant', Accept: 'application/json' };
  if (body !== undefined) headers['Content-Type'] = patch ? PATCHES[patch] : 'application/json';
  let dispatcher: Dispatcher | undefined;
  await withKeptConnections(config).applySecurityAuthentication({
    setHeaderParam(name, value) {
      headers[name] = value;
    },
    setDispatcher(kept) {
      dispatcher = kept;
    },
  });
  const answer = await request(`${config.getCurrentCluster()?.server ?? ''}${path}${search}`, {
    ...{ method, signal, headers, headersTimeout: 0, bodyTimeout: 0 },
    ...(body !== undefined && { body: JSON.stringify(body) }),
    ...(dispatcher && { dispatcher }),
  });
  if (answer.statusCode >= 200 && answer.statusCode < 300) return answer.body;
  throw new ApiError(answer.statusCode, await answer.body.text(), answer.headers);
}

/** Of a namespace's object, such as `/api/v1/namespaces/team/pods/one`; without a name, of all of them. */
export const pathOf = (namespace: string, plural: string, name?: string, group = '/api/v1'): string => {
  const all = `${group}/namespaces/${encodeURIComponent(namespace)}/${plural}`;
  return name === undefined ? all : `${all}/${encodeURIComponent(name)}`;
};
