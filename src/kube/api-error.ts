// The message of an error of the API server in one line; the client library's own text also has every header.

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
