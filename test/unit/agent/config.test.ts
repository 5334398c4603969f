// The agent's settings: file, then flags; whatever is wrong is reported at once, with its place and what would be
// right.
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
  readSettings,
  type Settings,
} from '../../../src/agent/config.ts';
import { OWN_KIND } from '../../../src/agent/kubelet/cdi/split-spec.ts';
import { configurationOf } from '../../../src/cli/daemons/agent-settings.ts';
import { UsageError } from '../../../src/cli/lib/command.ts';
import { showValue } from '../../../src/common/problem.ts';

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
  t.is(DEFAULTS.enforcement.mode, 'enforce');
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
    ['port', [0, 65535], [-1, 65536, 1.5, '80', null, true, Number.NaN], 'a whole number from 0 to 65535'],
    ['calibrate', [true, false], ['true', 1, null], 'true or false'],
    ['driverLimits', [true, false], ['true', 1, null], 'true or false'],
    ['canary', [true, false], ['true', 1, null], 'true or false'],
    ['intervalMs', [50, 60_000], [49, 60_001, 100.5, '1s'], 'a whole number from 50 to 60000'],
    ['mostTenantsPerGpu', [1, 1000], [0, 1001], 'a whole number from 1 to 1000'],
    ['interposerEngine', [0, 1, 999_999_999], [-1, 1.5, 1_000_000_000, 'next'], 'a whole number from 0 to 999999999'],
    ['placement', ['binpack', 'spread'], ['fragmentation', 'BINPACK', ['spread'], null], 'one of binpack, spread'],
    [
      'enforcement.mode',
      ['off', 'report', 'enforce'],
      ['on', ['report'], { report: 1 }, false, ''],
      'one of off, report, enforce',
    ],
    [
      'enforcement.softSeconds',
      [0, 0.5, 3600],
      [-1, 3601, '10', Number.POSITIVE_INFINITY, Number.NaN],
      'a number from 0 to 3600',
    ],
    ['enforcement.hardSamples', [2, 1000], [1, 0, 2.5], 'a whole number from 2 to 1000'],
    ['enforcement.ratio', [1, 1.02, 10], [0.99, 11], 'a number from 1 to 10'],
    ['enforcement.bytes', [0, 2 ** 40], [-1, 0.5, 2 ** 41], 'a whole number from 0 to 1099511627776'],
    ['enforcement.staleMs', [100, 60_000], [99, 0], 'a whole number from 100 to 60000'],
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
      t.deepEqual(problems({ [path]: value }), [`${path}: ${showValue(value)} is not valid; write ${want}`]);
  }
});

test('modes of GPUs are by UUID, and a wrong one is named', (t) => {
  const uuid = 'GPU-51a0c07e-4a27-4551-8d21-6e1004000000';
  t.deepEqual(configure({ gpuModes: { [uuid]: 'none' } }, 'x').gpuModes, { [uuid]: 'none' });
  for (const [gpuModes, message] of [
    [{ [uuid]: 'shared' }, /^x:\n {2}gpuModes\["GPU-\S+"\]: "shared" is not valid; write one of exclusive, none$/],
    [{ 0: 'none' }, /^x:\n {2}gpuModes.*the UUID of a GPU$/],
    [[], /a map from the UUID of a GPU to exclusive or none$/],
  ] as const)
    t.throws(() => configure({ gpuModes }, 'x'), { message });
});

test('settings that cannot be combined are refused', (t) => {
  const together = (settings: Settings) => checkTogether(configure(settings, 'x'));
  t.throws(() => together({ intervalMs: 8000 }), {
    message:
      'settings that cannot be combined:\n  silenceMs: 15000 is less than twice intervalMs, which is 8000; write at least 16000',
  });
  t.is(together({ intervalMs: 8000, silenceMs: 16_000 }).silenceMs, 16_000);
  t.throws(() => together({ enforcement: { ratio: 1.3 } }), {
    message:
      /^settings that cannot be combined:\n {2}enforcement\.hardRatio: 1\.25 is less than ratio, which is 1\.3; write at least 1\.3$/,
  });
  t.throws(() => together({ kubernetes: { cdiKind: OWN_KIND } }), {
    message:
      /kubernetes\.cdiKind: "cotenant\.io\/gpu" is the kind that the agent writes; write another one, or empty kubernetes\.cdiFolders$/,
  });
  t.is(together({ kubernetes: { cdiKind: OWN_KIND, cdiFolders: '' } }).kubernetes.cdiFolders, '');
  t.throws(() => together({ page: { socketUser: 65532 } }), {
    message: /page\.socketUser: 65532 is the user of a socket that is not set; set page\.socket$/,
  });
  t.is(together({ page: { socket: '/run/x', socketUser: 65532 } }).page.socketUser, 65532);
});

test('an unknown setting is refused, with a list of the known ones', (t) => {
  const names = ['intervalMS', 'enforcement.mod', 'constructor', 'toString', 'enforcement.constructor', 'port.x', ''];
  for (const name of names) {
    const [problem = '', ...more] = problems({ [name]: 1 });
    t.deepEqual(more, []);
    t.true(problem.startsWith(`${name}: no such setting; known are stateFolder, host, port, `.trim()), problem);
  }
  t.regex(problems(JSON.parse('{"__proto__": {"mode": "off"}}'))[0] ?? '', /^__proto__: no such setting/);
  t.regex(problems({ port: { x: 1 } })[0] ?? '', /^port: an object is not valid; write a whole number/);
});

test('one error lists every problem, with the source', (t) => {
  t.throws(() => configure({ port: 'x', enforcement: { mode: 'on' }, kubernetes: null }, '/etc/agent.yaml'), {
    message:
      '/etc/agent.yaml:\n  kubernetes: null is not a map of settings; write name: value\n  port: "x" is not valid; write a whole number from 0 to 65535\n  enforcement.mode: "on" is not valid; write one of off, report, enforce',
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
    ['- a\n', /agent\.yaml: is not a map of settings; write name: value$/],
    ['just text', /agent\.yaml: is not a map of settings; write name: value$/],
    ['port: 1\nport: 2\n', /agent\.yaml: Map keys must be unique/],
    ['a: [1', /agent\.yaml: /],
    ['a: 1\n---\nb: 2\n', /agent\.yaml: has several documents; want one, with the settings$/],
  ];
  for (const [text, message] of wrong) t.throws(() => readSettings(written(t, text)), { message });
  t.throws(() => readSettings('/nonexistent/agent.yaml'), { message: /^\/nonexistent\/agent\.yaml: ENOENT/ });
});

test('a flag is a path, an equals sign and a value; text settings keep digits as text', (t) => {
  const cases: [pair: string, expected: Partial<AgentConfiguration> | RegExp][] = [
    ['port=0', { port: 0 }],
    ['calibrate=false', { calibrate: false }],
    ['stateFolder=12345', { stateFolder: '12345' }],
    ['nvmlLibrary=/a=b', { nvmlLibrary: '/a=b' }],
    ['kubernetes.nodeName=007', { kubernetes: { ...DEFAULTS.kubernetes, nodeName: '007' } }],
    ['port', /^--set port: want PATH=VALUE$/],
    ['=1', /^--set =1: want PATH=VALUE$/],
    ['port=', /^--set:\n {2}port: "" is not valid; write a whole number/],
    ['port=0x50', /^--set:\n {2}port: "0x50" is not valid; write a whole number/],
    ['constructor=1', /^--set:\n {2}constructor: no such setting/],
    ['enforcement=report', /^--set:\n {2}enforcement: "report" is not a map of settings/],
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
