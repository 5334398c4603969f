// The exporter half's client of the snapshot socket: one HTTP request for each answer, bounded in time and size.
import { once } from 'node:events';
import type { IncomingMessage, OutgoingHttpHeaders } from 'node:http';
import type { Encoded, Source } from '../source.ts';
import { healthFrom, reviewedFrom, textOf } from './validate.ts';

export const CLIENT_LIMITS = {
  /** Of an answer: a hundred times the snapshot of 800 processes. */
  answerBytes: 16 << 20,
  /** Shorter than a scrape waits, so that a scraper gets `cotenant_up` 0 from a node half that hangs. */
  answerMs: 7000,
  /** Of a page's snapshot: longer than a scrape waits, which then reports that the page is late. */
  pageMs: 20_000,
} as const;
type ClientLimits = { readonly [K in keyof typeof CLIENT_LIMITS]: number };

export type ClientOptions = {
  readonly path: string;
  /** Let the node half review tokens. */
  readonly reviews: boolean;
  readonly limits?: ClientLimits;
};

async function bodyOf(response: IncomingMessage, mostBytes: number): Promise<Encoded> {
  const pieces: Buffer[] = [];
  let length = 0;
  for await (const piece of response as AsyncIterable<Buffer>) {
    length += piece.byteLength;
    if (length > mostBytes) throw new Error(`more than ${mostBytes} bytes`);
    pieces.push(piece);
  }
  const body = new Uint8Array(new ArrayBuffer(length));
  let at = 0;
  for (const piece of pieces) {
    body.set(piece, at);
    at += piece.byteLength;
  }
  return body;
}

export function createSnapshotClient({ path, reviews, limits = CLIENT_LIMITS }: ClientOptions): Source {
  const ask = async (route: string, ms = limits.answerMs, headers: OutgoingHttpHeaders = {}): Promise<Encoded> => {
    // Loaded by name, as serving/http-server.ts does, for its memory.
    const { request } = process.getBuiltinModule('node:http');
    const signal = AbortSignal.timeout(ms);
    const call = request({ socketPath: path, path: route, headers, signal, agent: false }).end();
    call.on('error', () => {}); // of a connection that ends within an answer
    let response: IncomingMessage;
    let body: Encoded;
    try {
      [response] = (await once(call, 'response')) as [IncomingMessage];
      body = await bodyOf(response, limits.answerBytes);
    } catch (error) {
      const reason = signal.aborted ? `not within ${ms / 1000} s` : (error as Error).message;
      throw new Error(`the node half does not answer: ${reason}`);
    } finally {
      call.destroy();
    }
    if (response.statusCode !== 200) throw new Error(textOf(body).trim());
    return body;
  };

  return {
    health: async () => healthFrom(await ask('/health')),
    // Parsed in the thread that renders the page.
    material: (withProcesses) => ask(withProcesses ? '/material-with-processes' : '/material', limits.pageMs),
    status: () => ask('/status'),
    history: () => ask('/history'),
    ...(reviews && {
      review: async (token, of) =>
        reviewedFrom(
          await ask(`/review?path=${encodeURIComponent(of)}`, limits.answerMs, { authorization: `Bearer ${token}` }),
        ),
    }),
  };
}
