// The only writer of logs: levels, a component, keys, JSON or text on standard error. A message that repeats is counted
// and written once a minute, and each component may write so many lines a minute: tenants can cause messages, and must
// not fill a disk or the agent's memory with them.
import { pino } from 'pino';

export const LOG_LEVELS = ['debug', 'info', 'warn', 'error'] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];
export const LOG_FORMATS = ['text', 'json'] as const;
export type LogFormat = (typeof LOG_FORMATS)[number];

/** What a message is about, for filters. A pod is `namespace/name`; `code` is for what programs and tests match. */
const KEYS = ['gpu', 'pod', 'container', 'grant', 'node', 'code'] as const;
type LogKeys = Readonly<Partial<Record<(typeof KEYS)[number], string>>>;

type WriteLog = (message: string, keys?: LogKeys) => void;

/** Functions that need no `this`, so one can be passed on alone. */
export type Logger = Readonly<Record<LogLevel, WriteLog>> & {
  component(name: string): Logger;
};

export type RootLogger = Logger & {
  /** Writes what was only counted until now; for the end of the process. */
  flush(): void;
};

type LogClock = {
  /** Milliseconds since 1970, for the timestamp. */
  dateMs(): number;
  /** Monotonic milliseconds. */
  nowMs(): number;
  /** Calls `run` once after `ms`; does not keep the process alive. */
  after(ms: number, run: () => void): void;
};

type LoggerOptions = {
  readonly component: string;
  readonly level?: LogLevel;
  readonly format?: LogFormat;
  readonly write?: (line: string) => void;
  readonly clock?: LogClock;
};

/** How long a repeated message is only counted, and the period of the line limit. */
export const WINDOW_MS = 60_000;
/** Lines of one component and level: so many at once, and then so many in each window. */
export const LINES_PER_WINDOW = 60;
const MAX_REMEMBERED = 512;
const MAX_MESSAGE_CHARS = 2000;
/** A namespace of 63, a slash and a pod name of 253. */
const MAX_KEY_CHARS = 320;

const SYSTEM_CLOCK: LogClock = {
  dateMs: Date.now,
  nowMs: () => performance.now(),
  after: (ms, run) => void setTimeout(run, ms).unref(),
};

type Line = {
  readonly level: LogLevel;
  readonly component: string;
  readonly message: string;
  readonly keys: LogKeys;
};
type Remembered = { readonly line: Line; readonly writtenMs: number; repeated: number };
type Budget = { lines: number; atMs: number; dropped: number; readonly level: LogLevel; readonly component: string };

const shorten = (text: string, max: number): string => (text.length <= max ? text : `${text.slice(0, max - 1)}…`);

function boundKeys(keys: LogKeys): LogKeys {
  const bounded: Partial<Record<(typeof KEYS)[number], string>> = {};
  for (const key of KEYS) {
    const value = keys[key];
    if (value !== undefined) bounded[key] = shorten(value, MAX_KEY_CHARS);
  }
  return bounded;
}

/** Decides which lines are written; `write` gets each of them with the number of equal ones that were only counted. */
function createLimiter(clock: LogClock, write: (line: Line, repeated: number) => void) {
  const remembered = new Map<string, Remembered>();
  const budgets = new Map<string, Budget>();
  let isScheduled = false;

  const budgetOf = ({ level, component }: Line): Budget => {
    const id = `${level} ${component}`;
    const nowMs = clock.nowMs();
    let budget = budgets.get(id);
    if (budget === undefined) {
      budget = { lines: LINES_PER_WINDOW, atMs: nowMs, dropped: 0, level, component };
      budgets.set(id, budget);
    }
    const earned = ((nowMs - budget.atMs) / WINDOW_MS) * LINES_PER_WINDOW;
    budget.lines = Math.min(LINES_PER_WINDOW, budget.lines + earned);
    budget.atMs = nowMs;
    return budget;
  };

  const reportDropped = (budget: Budget) => {
    if (budget.dropped === 0) return;
    const { level, component, dropped } = budget;
    budget.dropped = 0;
    const message = `${dropped} messages were not written: more than ${LINES_PER_WINDOW} in a minute`;
    write({ level, component, message, keys: { code: 'log-rate-limited' } }, 0);
  };

  const forget = (id: string, entry: Remembered) => {
    remembered.delete(id);
    if (entry.repeated > 0) write(entry.line, entry.repeated);
  };

  const schedule = () => {
    if (isScheduled) return;
    isScheduled = true;
    clock.after(WINDOW_MS, () => {
      isScheduled = false;
      report(clock.nowMs() - WINDOW_MS);
      for (const { repeated } of remembered.values()) if (repeated > 0) return schedule();
    });
  };

  /** Writes counts of messages whose last line is not newer than that. A message that goes on repeating stays
   * remembered. */
  const report = (untilMs: number) => {
    for (const [id, entry] of [...remembered]) {
      if (entry.writtenMs > untilMs) continue;
      forget(id, entry);
      if (entry.repeated > 0) remembered.set(id, { line: entry.line, writtenMs: clock.nowMs(), repeated: 0 });
    }
    for (const budget of budgets.values()) reportDropped(budget);
  };

  return {
    add(line: Line) {
      const id = JSON.stringify([line.level, line.component, line.message, line.keys]);
      const nowMs = clock.nowMs();
      const entry = remembered.get(id);
      if (entry && nowMs - entry.writtenMs < WINDOW_MS) {
        entry.repeated += 1;
        return schedule();
      }
      const budget = budgetOf(line);
      if (budget.lines < 1) {
        budget.dropped += 1;
        return schedule();
      }
      budget.lines -= 1;
      write(line, entry?.repeated ?? 0);
      remembered.delete(id);
      remembered.set(id, { line, writtenMs: nowMs, repeated: 0 });
      for (const [oldest, old] of remembered) {
        if (remembered.size <= MAX_REMEMBERED) break;
        forget(oldest, old);
      }
    },
    flush: () => report(Number.POSITIVE_INFINITY),
  };
}

/** Control characters would let a name write lines of its own, or colors; lines after the first are indented. */
const printable = (text: string): string =>
  text
    .replace(/(?!\n)\p{Cc}/gu, (char) => `\\x${char.charCodeAt(0).toString(16).padStart(2, '0')}`)
    .replaceAll('\n', '\n    ');

const printableValue = (value: string): string => (/[\s"=]/.test(value) ? JSON.stringify(value) : printable(value));

/** `2026-01-31T12:00:00.000Z warn sampler: message gpu=GPU-… repeated=3` of one line of pino. */
function formatText(json: string): string {
  const { time, level, component, msg, ...keys } = JSON.parse(json) as Record<string, string | number>;
  const pairs = Object.entries(keys).map(([key, value]) => ` ${key}=${printableValue(String(value))}`);
  return `${time} ${level} ${component}: ${printable(String(msg))}${pairs.join('')}\n`;
}

export function createLogger(options: LoggerOptions): RootLogger {
  const { level = 'info', format = 'text', clock = SYSTEM_CLOCK } = options;
  const standardError = options.write === undefined ? pino.destination({ fd: 2, sync: true }) : undefined;
  const write = options.write ?? ((line: string) => void standardError?.write(line));
  const writer = pino(
    {
      level,
      base: null,
      timestamp: () => `,"time":"${new Date(clock.dateMs()).toISOString()}"`,
      formatters: { level: (label) => ({ level: label }) },
    },
    { write: format === 'json' ? write : (line: string) => write(formatText(line)) },
  );
  const limiter = createLimiter(clock, ({ level: at, component, message, keys }, repeated) =>
    writer[at]({ component, ...keys, ...(repeated > 0 && { repeated }) }, message),
  );

  const loggerOf = (component: string): Logger => {
    const at =
      (lineLevel: LogLevel): WriteLog =>
      (message, keys = {}) => {
        if (!writer.isLevelEnabled(lineLevel)) return;
        limiter.add({
          level: lineLevel,
          component,
          message: shorten(message, MAX_MESSAGE_CHARS),
          keys: boundKeys(keys),
        });
      };
    return { debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error'), component: loggerOf };
  };
  return { ...loggerOf(options.component), flush: limiter.flush };
}
