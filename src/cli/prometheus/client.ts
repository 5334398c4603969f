// HTTP client of Prometheus: runs instant queries and returns their series. Defines the options that name the server,
// and the errors when it does not answer.
import { readFileSync } from 'node:fs';
import { attempt } from '../../common/result.ts';
import { type Options, type Parsed, text, UsageError } from '../lib/command.ts';

export type Prometheus = {
  readonly url: string;
  readonly authorization: string | undefined;
  /** Unix time of the end of the range. */
  readonly atSeconds: number;
  readonly rangeSeconds: number;
  /** The agents' job label in Prometheus. */
  readonly job: string;
};

export type Series = { readonly labels: Readonly<Record<string, string>>; readonly value: number };

const DEFAULT_RANGE = '7d';
const DEFAULT_JOB = 'cotenant';
const LONGEST_RANGE_SECONDS = 400 * 86_400;
const ANSWER_MS = 120_000;

export const PROMETHEUS_OPTIONS: Options = {
  prometheus: {
    value: 'URL',
    help: 'of the Prometheus that scrapes the agents (default COTENANT_PROMETHEUS)',
  },
  'token-file': { value: 'FILE', help: 'with the bearer token that it wants, if any' },
  job: { value: 'JOB', help: `under which it scrapes the agents (default ${DEFAULT_JOB})` },
  range: { value: 'TIME', help: `to look back, such as 12h or 30d (default ${DEFAULT_RANGE})` },
  until: { value: 'TIME', help: 'end of the range, such as 2026-11-30T00:00:00Z (default now)' },
};

/** The Prometheus that the command line or the environment names; undefined: neither does. */
export function prometheusOf(parsed: Parsed, nowMs: number): Prometheus | undefined {
  const named = text(parsed, 'prometheus') ?? process.env.COTENANT_PROMETHEUS;
  if (named === undefined || named === '') {
    const idle = ['token-file', 'job', 'range', 'until'].find((name) => text(parsed, name) !== undefined);
    if (idle !== undefined) throw new UsageError(`--${idle} is about a Prometheus: name one with --prometheus URL`);
    return undefined;
  }
  return {
    url: addressOf(named),
    authorization: tokenOf(text(parsed, 'token-file')),
    atSeconds: untilOf(text(parsed, 'until')) ?? Math.ceil(nowMs / 1000),
    rangeSeconds: rangeOf(text(parsed, 'range') ?? DEFAULT_RANGE),
    job: text(parsed, 'job') ?? DEFAULT_JOB,
  };
}

function addressOf(named: string): string {
  const url = URL.canParse(named) ? new URL(named) : undefined;
  if (url === undefined || !['http:', 'https:'].includes(url.protocol) || url.search !== '' || url.username !== '') {
    throw new UsageError(`--prometheus ${named}: want an address such as http://prometheus.monitoring:9090`);
  }
  return url.href.replace(/\/+$/, '');
}

function tokenOf(path: string | undefined): string | undefined {
  if (path === undefined) return undefined;
  try {
    return `Bearer ${readFileSync(path, 'utf8').trim()}`;
  } catch (error) {
    throw new UsageError(`--token-file ${path}: ${(error as Error).message}`);
  }
}

function untilOf(value: string | undefined): number | undefined {
  if (value === undefined) return undefined;
  const ms = Date.parse(value);
  if (Number.isNaN(ms)) throw new UsageError(`--until ${value}: want a time such as 2026-11-30T00:00:00Z`);
  return Math.floor(ms / 1000);
}

/** Begin and end of the range. */
export const periodOf = ({ atSeconds, rangeSeconds }: Prometheus): readonly string[] =>
  [atSeconds - rangeSeconds, atSeconds].map((at) => new Date(at * 1000).toISOString());

const SECONDS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 };

/** One number and its unit, as PromQL writes times. */
export function durationOf(value: string): number | undefined {
  const [, count, unit = ''] = /^([1-9]\d{0,8})([smhdw])$/.exec(value) ?? [];
  return count === undefined ? undefined : Number(count) * (SECONDS[unit] ?? 0);
}

function rangeOf(value: string): number {
  const seconds = durationOf(value);
  if (seconds === undefined || seconds < 60 || seconds > LONGEST_RANGE_SECONDS) {
    throw new UsageError(`--range ${value}: want 60s to 400d, such as 12h, 7d or 4w`);
  }
  return seconds;
}

type Answer =
  | { readonly status: 'success'; readonly data: { readonly resultType: string; readonly result: unknown } }
  | { readonly status: 'error'; readonly error: string };

/** Values at the end of the range, without those that are not numbers. */
export async function query(prometheus: Prometheus, expression: string): Promise<readonly Series[]> {
  const { url, authorization, atSeconds } = prometheus;
  const response = await fetch(`${url}/api/v1/query`, {
    method: 'POST',
    headers: { ...(authorization !== undefined && { Authorization: authorization }) },
    body: new URLSearchParams({ query: expression, time: String(atSeconds) }),
    signal: AbortSignal.timeout(ANSWER_MS),
  }).catch((error: Error & { cause?: { code?: string; message?: string } }) => {
    throw new UsageError(
      `no Prometheus answers at ${url} (${error.cause?.code ?? error.cause?.message ?? error.message})`,
    );
  });
  const body = await response.text();
  const answer = parsed(body);
  if (answer === undefined) {
    const first = body.trim().split('\n')[0]?.slice(0, 200) ?? '';
    throw new UsageError(`${url} does not answer as a Prometheus does (status ${response.status}): ${first}`);
  }
  if (answer.status === 'error') throw new UsageError(`the Prometheus at ${url} refuses: ${answer.error}`);
  const { resultType, result } = answer.data;
  if (resultType !== 'vector' || !Array.isArray(result)) throw new Error(`${resultType} in answer to ${expression}`);
  const rows = result as readonly { metric: Record<string, string>; value: readonly [number, string] }[];
  return rows.flatMap(({ metric, value }) => {
    const number = Number(value[1]);
    return Number.isFinite(number) ? [{ labels: metric, value: number }] : [];
  });
}

function parsed(body: string): Answer | undefined {
  const answer = attempt(() => JSON.parse(body) as Answer | null);
  return answer.ok && ['success', 'error'].includes(answer.value?.status ?? '')
    ? (answer.value ?? undefined)
    : undefined;
}
