// GETs whose answer is read as it arrives (json-stream.ts): the client library has whole answers in memory, twice.
import { ApiException, HttpMethod, type KubeConfig, RequestContext } from '@kubernetes/client-node';
import { request } from 'undici';
import { withKeptConnections } from './connections.ts';

export type Query = Readonly<Record<string, string>>;

/** The body of the answer. Rejects with an ApiException where the status is not 200. */
export async function getStream(
  config: KubeConfig,
  path: string,
  query: Query,
  signal: AbortSignal,
): Promise<AsyncIterable<Uint8Array>> {
  const url = `${config.getCurrentCluster()?.server ?? ''}${path}?${new URLSearchParams(query)}`;
  const context = new RequestContext(url, HttpMethod.GET);
  context.setHeaderParam('User-Agent', 'cotenant');
  context.setHeaderParam('Accept', 'application/json');
  await withKeptConnections(config).applySecurityAuthentication(context);
  const dispatcher = context.getDispatcher();
  const { statusCode, headers, body } = await request(url, {
    ...{ signal, headers: context.getHeaders(), headersTimeout: 0, bodyTimeout: 0 },
    ...(dispatcher && { dispatcher }),
  });
  if (statusCode === 200) return body;
  const entries = Object.entries(headers).map(([name, value]) => [name, String(value)] as const);
  throw new ApiException(statusCode, 'refused', await body.text(), Object.fromEntries(entries));
}
