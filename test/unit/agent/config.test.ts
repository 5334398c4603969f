// The agent's settings: file, then flags; whatever is wrong is told at once, with its place and what would be right.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import {
  type AgentConfiguration,
  checkTogether,
  configure,
  DEFAULTS,
  isText,
  modeOf,
  readSettings,
  type Settings,
} from '../../../src/agent/config.ts';
import { OWN_KIND } from '../../../src/agent/kubelet/cdi/split-spec.ts';
import { configurationOf } from '../../../src/cli/daemons/agent-settings.ts';
import { UsageError } from '../../../src/cli/lib/command.ts';

function written(t: ExecutionContext, text: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-settings-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const path = join(folder, 'agent.yaml');
  writeFileSync(path, text);
  return path;
}
/** The problems of one set of settings, a line each. */
const problems = (settings: unknown): string[] => {
  try {
    configure(settings as Record<string, unknown>, 'x');
    return [];
  } catch (error) {
    return (error as Error).message
      .split('\n')
      .slice(1)
      .map((line) => line.trim());
  }
};

test('no settings are the defaults, and the defaults are settings', (t) => {
  t.deepEqual(configure({}, 'x'), DEFAULTS);
  t.deepEqual(configure(DEFAULTS, 'x'), DEFAULTS);
  t.is(modeOf(DEFAULTS), 'enforce');
  // The tolerance and the times that the ladder is documented with.
  t.like(DEFAULTS.enforcement, {
    ratio: 1.02,
    bytes: 64 * 1024 * 1024,
    hardRatio: 1.25,
    softSeconds: 10,
    softSamples: 5,
    hardSamples: 2,
    graceSeconds: 10,
    coolDownSeconds: 30,
    releaseSeconds: 15,
    staleMs: 3000,
  });
});

test('a setting may be nested or written as a path, and changes nothing beside it', (t) => {
  const nested = configure({ port: 0, enforcement: { mode: 'report', graceSeconds: 2.5 } }, 'x');
  t.deepEqual(nested, {
    ...DEFAULTS,
    port: 0,
    enforcement: { ...DEFAULTS.enforcement, mode: 'report', graceSeconds: 2.5 },
  });
  t.deepEqual(configure({ port: 0, 'enforcement.mode': 'report', 'enforcement.graceSeconds': 2.5 }, 'x'), nested);
  t.is(DEFAULTS.enforcement.mode, 'enforce', 'the defaults are not written to');
});

test('flags go over the file, the file over the defaults', (t) => {
  const path = written(t, 'port: 1\nhost: 0.0.0.0\nenforcement:\n  mode: "off"\n  hardSamples: 3\n');
  const configuration = configurationOf(path, ['port=2', 'enforcement.mode=report']);
  t.deepEqual(configuration, {
    ...DEFAULTS,
    port: 2,
    host: '0.0.0.0',
    enforcement: { ...DEFAULTS.enforcement, mode: 'report', hardSamples: 3 },
  });
});

test('every setting is checked by its kind and range, and says what would be right', (t) => {
  const cases: [path: string, good: unknown[], bad: unknown[], want: string][] = [
    ['stateFolder', ['/x'], ['', 5, null, ['/x']], 'a folder'],
    ['port', [0, 65535], [-1, 65536, 1.5, '80', null, true, Number.NaN], 'a port, 0 to 65535'],
    ['calibrate', [true, false], ['true', 1, null], 'true or false'],
    ['driverLimits', [true, false], ['true', 1, null], 'true or false'],
    ['canary', [true, false], ['true', 1, null], 'true or false'],
    ['intervalMs', [50, 60_000], [49, 60_001, 100.5, '1s'], 'milliseconds, 50 to 60000'],
    ['mostTenantsPerGpu', [1, 1000], [0, 1001], '1 to 1000'],
    ['interposerEngine', [0, 1, 999_999_999], [-1, 1.5, 1_000_000_000, 'next'], "an engine's number, or 0"],
    ['placement', ['binpack', 'spread'], ['fragmentation', 'BINPACK', ['spread'], null], 'binpack or spread'],
    [
      'enforcement.mode',
      ['off', 'report', 'enforce'],
      ['on', ['report'], { report: 1 }, false, ''],
      'off, report or enforce',
    ],
    [
      'enforcement.softSeconds',
      [0, 0.5, 3600],
      [-1, 3601, '10', Number.POSITIVE_INFINITY, Number.NaN],
      'seconds, 0 to 3600',
    ],
    ['enforcement.hardSamples', [2, 1000], [1, 0, 2.5], '2 to 1000: one sample is never enough'],
    ['enforcement.ratio', [1, 1.02, 10], [0.99, 11], 'a ratio, 1 to 10'],
    ['enforcement.bytes', [0, 2 ** 40], [-1, 0.5, 2 ** 41], 'bytes'],
    ['enforcement.staleMs', [100, 60_000], [99, 0], 'milliseconds, 100 to 60000'],
    ['kubernetes.enabled', [true], ['yes'], 'true or false'],
    ['kubernetes.nodeName', ['', 'node-1'], [1], "the node's name"],
    [
      'kubernetes.cdiFolders',
      ['', '/run/cdi', '/etc/cdi,/run/cdi'],
      ['run/cdi', '/etc/cdi, /run/cdi', '/etc/cdi,', '/', 5, ['/etc/cdi']],
      'absolute folders with commas, or nothing',
    ],
  ];
  for (const [path, good, bad, want] of cases) {
    for (const value of good) t.deepEqual(problems({ [path]: value }), [], `${path}: ${String(value)}`);
    for (const value of bad)
      t.deepEqual(problems({ [path]: value }), [`${path}: ${JSON.stringify(value)}; want ${want}`]);
  }
});

test('settings that do not go together are told', (t) => {
  const together = (settings: Settings) => checkTogether(configure(settings, 'x'));
  t.throws(() => together({ intervalMs: 8000 }), {
    message: 'settings that do not go together:\n  silenceMs: 15000; want at least twice intervalMs, which is 8000',
  });
  t.is(together({ intervalMs: 8000, silenceMs: 16_000 }).silenceMs, 16_000);
  t.throws(() => together({ enforcement: { ratio: 1.3 } }), {
    message:
      /^settings that do not go together:\n {2}enforcement\.hardRatio: 1\.25; want at least ratio, which is 1\.3$/,
  });
  t.throws(() => together({ kubernetes: { cdiKind: OWN_KIND } }), {
    message:
      /kubernetes\.cdiKind: cotenant\.io\/gpu is what is written; want another one, or no kubernetes\.cdiFolders$/,
  });
  t.is(together({ kubernetes: { cdiKind: OWN_KIND, cdiFolders: '' } }).kubernetes.cdiFolders, '');
  t.throws(() => together({ page: { socketUser: 65532 } }), {
    message: /page\.socketUser: is of the socket of the node half; want page\.socket, too$/,
  });
  t.is(together({ page: { socket: '/run/x', socketUser: 65532 } }).page.socketUser, 65532);
});

test('a setting that does not exist is told with those that do', (t) => {
  const names = ['intervalMS', 'enforcement.mod', 'constructor', 'toString', 'enforcement.constructor', 'port.x', ''];
  for (const name of names) {
    const [problem = '', ...more] = problems({ [name]: 1 });
    t.deepEqual(more, []);
    t.true(problem.startsWith(`${name}: no such setting; known are stateFolder, host, port, `.trim()), problem);
  }
  t.regex(problems(JSON.parse('{"__proto__": {"mode": "off"}}'))[0] ?? '', /^__proto__: no such setting/);
  t.regex(problems({ port: { x: 1 } })[0] ?? '', /^port: \{"x":1\}; want a port/);
});

test('everything that is wrong is told at once, with the source', (t) => {
  t.throws(() => configure({ port: 'x', enforcement: { mode: 'on' }, kubernetes: null }, '/etc/agent.yaml'), {
    message:
      '/etc/agent.yaml:\n  kubernetes: want a map of settings\n  port: "x"; want a port, 0 to 65535\n  enforcement.mode: "on"; want off, report or enforce',
  });
});

test('a file is YAML or JSON with a map in it; an empty one changes nothing', (t) => {
  const cases: [text: string, expected: Record<string, unknown>][] = [
    ['', {}],
    ['# nothing\n', {}],
    ['port: 9000\nenforcement: {mode: off}\n', { port: 9000, enforcement: { mode: 'off' } }],
    ['{"port": 9000}', { port: 9000 }],
  ];
  for (const [text, expected] of cases) t.deepEqual(readSettings(written(t, text)), expected);
  const wrong: [text: string, message: RegExp][] = [
    ['- a\n', /agent\.yaml: want a map of settings$/],
    ['just text', /agent\.yaml: want a map of settings$/],
    ['port: 1\nport: 2\n', /agent\.yaml: Map keys must be unique/],
    ['a: [1', /agent\.yaml: /],
  ];
  for (const [text, message] of wrong) t.throws(() => readSettings(written(t, text)), { message });
  t.throws(() => readSettings('/nonexistent/agent.yaml'), { message: /^\/nonexistent\/agent\.yaml: ENOENT/ });
});

test('a flag is a path, an equals sign and a value; what holds text keeps digits as text', (t) => {
  const cases: [pair: string, expected: Partial<AgentConfiguration> | RegExp][] = [
    ['port=0', { port: 0 }],
    ['calibrate=false', { calibrate: false }],
    ['stateFolder=12345', { stateFolder: '12345' }],
    ['nvmlLibrary=/a=b', { nvmlLibrary: '/a=b' }],
    ['kubernetes.nodeName=007', { kubernetes: { ...DEFAULTS.kubernetes, nodeName: '007' } }],
    ['port', /^--set port: want PATH=VALUE$/],
    ['=1', /^--set =1: want PATH=VALUE$/],
    ['port=', /^--set:\n {2}port: ""; want a port/],
    ['port=0x50', /^--set:\n {2}port: "0x50"; want a port/],
    ['constructor=1', /^--set:\n {2}constructor: no such setting/],
    ['enforcement=report', /^--set:\n {2}enforcement: want a map of settings/],
  ];
  for (const [pair, expected] of cases) {
    if (expected instanceof RegExp)
      t.throws(() => configurationOf(undefined, [pair]), { instanceOf: UsageError, message: expected });
    else t.deepEqual(configurationOf(undefined, [pair]), { ...DEFAULTS, ...expected });
  }
  t.true(isText('host'));
  t.false(isText('port'));
  t.false(isText('constructor'));
});
