// The logger with a destination in memory and a clock that the test sets.
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import test from 'ava';
import {
  createLogger,
  LINES_PER_WINDOW,
  type LogFormat,
  type LogLevel,
  WINDOW_MS,
} from '../../../src/common/logger.ts';

const START_MS = Date.UTC(2026, 0, 31, 12);

function logging({ format = 'json', level }: { format?: LogFormat; level?: LogLevel } = {}) {
  const lines: string[] = [];
  const timers: { atMs: number; run: () => void }[] = [];
  let nowMs = 0;
  const logger = createLogger({
    component: 'agent',
    format,
    ...(level && { level }),
    write: (line) => lines.push(line),
    clock: {
      dateMs: () => START_MS + nowMs,
      nowMs: () => nowMs,
      after: (ms, run) => timers.push({ atMs: nowMs + ms, run }),
    },
  });
  return {
    logger,
    lines,
    take: () => lines.splice(0).map((line) => JSON.parse(line) as Record<string, unknown>),
    pass(ms: number) {
      nowMs += ms;
      for (const due of timers.filter(({ atMs }) => atMs <= nowMs)) {
        timers.splice(timers.indexOf(due), 1);
        due.run();
      }
    },
  };
}

test('a JSON line has time, level, component, keys and message', (t) => {
  const { logger, take } = logging();
  logger.component('registry').warn('the limits page cannot be written', { pod: 'a/b', code: 'limits-page' });
  t.deepEqual(take(), [
    {
      level: 'warn',
      time: '2026-01-31T12:00:00.000Z',
      component: 'registry',
      pod: 'a/b',
      code: 'limits-page',
      msg: 'the limits page cannot be written',
    },
  ]);
});

test('a text line has the same parts in one line', (t) => {
  const { logger, lines } = logging({ format: 'text' });
  logger.error('no sample for 15 s', { gpu: 'GPU-1', container: 'has space' });
  t.deepEqual(lines, ['2026-01-31T12:00:00.000Z error agent: no sample for 15 s gpu=GPU-1 container="has space"\n']);
});

test('text cannot forge a line or send escape sequences to a terminal', (t) => {
  const { logger, lines } = logging({ format: 'text' });
  logger.warn('one\n2026-01-31T12:00:00.000Z error agent: forged\u001b[31m', { pod: 'a\nb', container: '\u001b' });
  t.deepEqual(lines, [
    '2026-01-31T12:00:00.000Z warn agent: one\n' +
      '    2026-01-31T12:00:00.000Z error agent: forged\\x1b[31m pod="a\\nb" container=\\x1b\n',
  ]);
});

test('levels below the chosen one are not written', (t) => {
  const quiet = logging({ level: 'warn' });
  for (const level of ['debug', 'info', 'warn', 'error'] as const) quiet.logger[level](level);
  t.deepEqual(
    quiet.take().map(({ level }) => level),
    ['warn', 'error'],
  );
  const byDefault = logging();
  byDefault.logger.debug('debug');
  byDefault.logger.info('info');
  t.deepEqual(
    byDefault.take().map(({ level }) => level),
    ['info'],
  );
});

test('a message that repeats is written once a minute with the number of repetitions', (t) => {
  const { logger, take, pass } = logging();
  for (let second = 0; second < 150; second += 1) {
    logger.warn('the API server does not answer');
    logger.warn('another problem', { gpu: 'GPU-1' });
    pass(1000);
  }
  t.deepEqual(
    take().map(({ msg, repeated = 0, time }) => [msg, repeated, time]),
    [
      ['the API server does not answer', 0, '2026-01-31T12:00:00.000Z'],
      ['another problem', 0, '2026-01-31T12:00:00.000Z'],
      ['the API server does not answer', 59, '2026-01-31T12:01:00.000Z'],
      ['another problem', 59, '2026-01-31T12:01:00.000Z'],
      ['the API server does not answer', 59, '2026-01-31T12:02:00.000Z'],
      ['another problem', 59, '2026-01-31T12:02:00.000Z'],
    ],
  );
});

test('repetitions are reported although the message has stopped', (t) => {
  const { logger, take, pass } = logging();
  for (let i = 0; i < 3; i += 1) logger.warn('x');
  pass(WINDOW_MS);
  t.deepEqual(
    take().map(({ repeated = 0 }) => repeated),
    [0, 2],
  );
  pass(10 * WINDOW_MS);
  t.deepEqual(take(), []);
  logger.warn('x');
  t.deepEqual(
    take().map(({ repeated = 0 }) => repeated),
    [0],
  );
});

test('the same message with another key, level or component is another message', (t) => {
  const { logger, take } = logging();
  logger.warn('x');
  logger.error('x');
  logger.warn('x', { gpu: 'GPU-1' });
  logger.warn('x', { gpu: 'GPU-2' });
  logger.component('sampler').warn('x');
  t.is(take().length, 5);
});

test('a component over its rate is cut off, others are not, and the cut is reported', (t) => {
  const { logger, take, pass } = logging();
  for (let i = 0; i < 10_000; i += 1) logger.component('csi').warn(`request ${i}`);
  logger.component('csi').error('an error');
  logger.component('sampler').warn('a warning');
  const written = take();
  t.is(written.filter(({ component, level }) => component === 'csi' && level === 'warn').length, LINES_PER_WINDOW);
  t.is(written.length, LINES_PER_WINDOW + 2);
  pass(WINDOW_MS);
  t.like(take(), [
    {
      level: 'warn',
      component: 'csi',
      code: 'log-rate-limited',
      msg: `${10_000 - LINES_PER_WINDOW} messages were not written: more than ${LINES_PER_WINDOW} in a minute`,
    },
  ]);
  logger.component('csi').warn('again');
  t.is(take().length, 1);
});

test('long messages and keys are cut', (t) => {
  const { logger, take } = logging();
  logger.warn('m'.repeat(1_000_000), { pod: 'p'.repeat(1_000_000) });
  const [line] = take();
  t.is(String(line?.msg).length, 2000);
  t.is(String(line?.pod).length, 320);
});

test('memory stays bounded while names never repeat', (t) => {
  const { logger, lines, pass } = logging();
  setFlagsFromString('--expose-gc');
  const heapBytes = () => {
    runInNewContext('gc')();
    return process.memoryUsage().heapUsed;
  };
  const before = heapBytes();
  for (let i = 0; i < 100_000; i += 1) {
    logger.warn(`${i} ${'m'.repeat(1000)}`, { pod: `a/${i}` });
    if (i % 100 === 0) pass(WINDOW_MS);
    lines.length = 0;
  }
  t.true(heapBytes() - before < 4 << 20);
});

test('flush writes the counts that are left', (t) => {
  const { logger, take } = logging();
  logger.info('x');
  logger.info('x');
  logger.flush();
  t.deepEqual(
    take().map(({ repeated = 0 }) => repeated),
    [0, 1],
  );
});
