// What an API server's refusal says, in one line: the client library's own text also carries every header.

export function describeApiError(error: unknown): string {
  const { code, statusCode, body, message } = (error ?? {}) as Partial<Record<string, unknown>>;
  const status = code ?? statusCode;
  let said: unknown;
  try {
    said = (typeof body === 'string' ? (JSON.parse(body) as { message?: unknown }) : undefined)?.message;
  } catch {
    said = body;
  }
  const words = typeof said === 'string' && said !== '' ? said : String(message ?? error);
  return `${typeof status === 'number' ? `status ${status}: ` : ''}${words.split('\n')[0]}`;
}
