// Errors of the API server: the message in one line (the client library's own text also has every header), and the
// status.
import { textAt } from '../common/json.ts';

export function describeApiError(error: unknown): string {
  const { code, statusCode, body, message } = (error ?? {}) as Partial<Record<string, unknown>>;
  const status = code ?? statusCode;
  let detail: unknown;
  try {
    detail = (typeof body === 'string' ? (JSON.parse(body) as { message?: unknown }) : undefined)?.message;
  } catch {
    detail = body;
  }
  const text = typeof detail === 'string' && detail !== '' ? detail : String(message ?? error);
  return `${typeof status === 'number' ? `status ${status}: ` : ''}${text.split('\n')[0]}`;
}

/** The status that the API server answered with; undefined: it did not answer. */
export const statusOf = (error: unknown): unknown => (error as { readonly code?: unknown } | undefined)?.code;

/** What a call reads; undefined: there is no such object. */
export const unlessMissing = <T>(call: Promise<T>): Promise<T | undefined> =>
  call.catch((error: unknown) => {
    if (statusOf(error) === 404) return undefined;
    throw error;
  });

/** A longer pause is another problem than a busy server. */
const MOST_RETRY_AFTER_MS = 60_000;

/** How long the API server asks to wait before the call is tried again; 0: it asks for nothing. */
export function retryAfterMsOf(error: unknown): number {
  const { headers } = (error ?? {}) as { readonly headers?: unknown };
  const seconds = Number(textAt(headers, 'retry-after') ?? 0);
  return seconds > 0 ? Math.min(seconds * 1000, MOST_RETRY_AFTER_MS) : 0;
}
