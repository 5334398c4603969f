// Arguments to values: what is taken, what is refused in words, and what the usage says.
import test from 'ava';
import fc from 'fast-check';
import { parse as readYaml } from 'yaml';
import { run } from '../../../src/cli/commands/grants/run.ts';
import { set } from '../../../src/cli/commands/grants/set.ts';
import {
  type Command,
  choice,
  flag,
  type Parsed,
  parse,
  settingOf,
  text,
  UsageError,
  usageOf,
  whole,
} from '../../../src/cli/lib/command.ts';
import { nearNames } from '../../../src/cli/lib/near.ts';
import { jsonText, yamlText } from '../../../src/cli/lib/text.ts';
import { computeChange } from '../../../src/cli/options/set.ts';
import { shareOf, sharesOf } from '../../../src/cli/options/share.ts';
import { MIB } from '../../../src/common/quantity.ts';

const command: Command = {
  name: 'try',
  summary: 'Tries.',
  usage: '[options] -- COMMAND',
  takesOperands: true,
  options: {
    size: { short: 's', value: 'SIZE', help: 'how much' },
    gpu: { multiple: true, value: 'UUID', help: 'on which' },
    quiet: { short: 'q', help: 'says nothing' },
  },
  run: async () => 0,
};
const parsed = (...args: string[]): Parsed => {
  const found = parse(command, args);
  if (found === 'help') throw new Error('help was asked for');
  return found;
};

test('options and positional arguments are read as written', (t) => {
  const cases: [args: string[], values: Record<string, unknown>, operands: string[]][] = [
    [[], {}, []],
    [['--size', '2Gi', 'a', 'b'], { size: '2Gi' }, ['a', 'b']],
    [['--size=2Gi', '-q'], { size: '2Gi', quiet: true }, []],
    [['-s', '1', '-s', '2'], { size: '2' }, []],
    [['-qs3'], { size: '3', quiet: true }, []],
    [['--gpu', 'a', '--gpu', 'b'], { gpu: ['a', 'b'] }, []],
    [['--', '--size', '-q', '--', 'x'], {}, ['--size', '-q', '--', 'x']],
    [['a', '--', '-h'], {}, ['a', '-h']],
    [['--size='], { size: '' }, []],
  ];
  for (const [args, values, operands] of cases) {
    const found = parsed(...args);
    t.deepEqual({ ...found.values }, values, args.join(' '));
    t.deepEqual(found.operands, operands, args.join(' '));
  }
  t.is(text(parsed('-s', '1'), 'size'), '1');
  t.is(text(parsed('-q'), 'quiet'), undefined);
  t.is(text(parsed(), 'size'), undefined);
  t.true(flag(parsed('-q'), 'quiet'));
  t.false(flag(parsed(), 'quiet'));
});

test('a command without arguments refuses one', (t) => {
  const { takesOperands: _, ...bare } = command;
  t.throws(() => parse(bare, ['one', '-q', 'two']), { message: 'unexpected argument: one two' });
  t.is(parse(bare, ['one', '--help']), 'help');
});

test('a number or a name is read within its bounds', (t) => {
  t.is(whole(parsed('-s', '9'), 'size', 1, 9), 9);
  t.is(whole(parsed(), 'size', 1, 9), undefined);
  const wrong: Record<string, string> = {
    '0': '0: want 1 to 9',
    '10': '10: want 1 to 9',
    '1.5': '1.5: want 1 to 9',
    '-1': '-1: want 1 to 9',
    '': '"": want 1 to 9',
    '1e0': '1e0: want 1 to 9; write 1',
    ' 1': '" 1": want 1 to 9; write 1',
    '"5"': '"\\"5\\"": want 1 to 9; write 5',
    '5,': '"5,": want 1 to 9; write 5',
    '5%': '5%: want 1 to 9',
  };
  for (const [value, message] of Object.entries(wrong))
    t.throws(() => whole(parsed(`--size=${value}`), 'size', 1, 9), { message: `--size ${message}` });
  t.is(choice(parsed('-s', 'b'), 'size', ['a', 'b', 'c']), 'b');
  t.is(choice(parsed(), 'size', ['a', 'b']), undefined);
  t.throws(() => choice(parsed('-s', 'd'), 'size', ['a', 'b', 'c']), { message: '--size d: want a, b or c' });
  t.throws(() => choice(parsed('-s', ''), 'size', ['a', 'b']), { message: '--size "": want a or b' });
});

test('help is asked for in two ways, wherever it stands before the command', (t) => {
  for (const args of [['--help'], ['-h'], ['--size', '1', '-h'], ['word', '--help']])
    t.is(parse(command, args), 'help');
});

test('a mistake is reported as a usage error', (t) => {
  const cases: [args: string[], message: RegExp][] = [
    [['--sizes', '1'], /--sizes/],
    [['-x'], /-x/],
    [['--size'], /^--size: its value is missing$/],
    [['--quiet=yes'], /^--quiet: takes no value$/],
  ];
  for (const [args, message] of cases) t.throws(() => parse(command, args), { instanceOf: UsageError, message });
});

test('a mistyped option is answered with the nearest ones', (t) => {
  const cases: [args: string[], message: string][] = [
    [['--sizes', '1'], 'try has no option --sizes; did you mean --size?'],
    [['--gpus', 'x'], 'try has no option --gpus; did you mean --gpu?'],
    [['--queit'], 'try has no option --queit; did you mean --quiet?'],
    [['--frob=1'], 'try has no option --frob; cotenant try --help lists its options'],
    [['-x'], 'try has no option -x; cotenant try --help lists its options'],
  ];
  for (const [args, message] of cases) t.throws(() => parse(command, args), { instanceOf: UsageError, message });
  t.deepEqual(nearNames('memory', ['gpu', 'gpu-memory', 'name']), ['gpu-memory']);
  t.deepEqual(nearNames('gpu-core', ['gpu-cores-limit', 'gpu-cores', 'gpus']), ['gpu-cores']);
  t.deepEqual(nearNames('st', ['set', 'top', 'run', 'get']), ['set']);
  t.deepEqual(nearNames('', ['set', 'top']), []);
  t.deepEqual(nearNames('conv', ['get', 'convert']), ['convert']);
  t.deepEqual(nearNames('filename', ['file', 'config']), ['file']);
});

test('YAML and JSON carry the same value, and no control character', async (t) => {
  const value = {
    a: [1, null, true],
    b: 'x\u001b[31m\u009b',
    c: 'two\nlines and ever so long that it would be folded',
    d: 'yes',
  };
  const yaml = await yamlText(value);
  t.deepEqual(readYaml(yaml), value);
  t.notRegex(yaml.replaceAll('\n', ''), /\p{Cc}/u);
  t.deepEqual(JSON.parse(jsonText(value)), value);
});

test('the usage names every option with its letter, its value and its purpose', (t) => {
  t.is(
    usageOf({ ...command, notes: 'Mind the gap.' }),
    `usage: cotenant try [options] -- COMMAND

Tries.

  -s, --size SIZE  how much
      --gpu UUID   on which
  -q, --quiet      says nothing
  -h, --help       show this

Mind the gap.
`,
  );
  t.true(usageOf(command).endsWith('show this\n'));
});

test('numbers and truths of a flag are read as such, all else is text', (t) => {
  const cases: [string, unknown][] = [
    ['true', true],
    ['false', false],
    ['12', 12],
    ['-3', -3],
    ['1.02', 1.02],
    ['', ''],
    ['1e3', '1e3'],
    ['0x10', '0x10'],
    [' 1', ' 1'],
    ['1.', '1.'],
    ['True', 'True'],
    ['null', 'null'],
    ['Infinity', 'Infinity'],
  ];
  for (const [written, value] of cases) t.is(settingOf(written), value);
});

const shares = (...args: string[]) => {
  const found = parse(run, args);
  if (found === 'help') throw new Error('help was asked for');
  return sharesOf(found);
};

test('amounts of a run are totals over its GPUs, split into equal shares of whole MiB', (t) => {
  const cases: [args: string[], mib: number[], cores?: number][] = [
    [['-m', '2Gi'], [2048]],
    [['-m', '513Mi'], [513]],
    [
      ['-m', '12Gi', '-n', '3'],
      [4096, 4096, 4096],
    ],
    [['-m', '1048576'], [1]],
    [['-m', '2Gi', '--gpu-cores', '100'], [2048], 100],
    [['-m', '2Gi', '-n', '2', '--gpu-cores', '50'], [1024, 1024], 25],
    [['-m', '2Gi', '-n', '2', '--gpu-cores', '200'], [1024, 1024], 100],
  ];
  for (const [args, mib, coresPercent] of cases) {
    t.deepEqual(
      shares(...args),
      mib.map((size) => ({
        memory: { kind: 'bytes', bytes: size * MIB },
        ...(coresPercent === undefined ? {} : { coresPercent }),
      })),
      args.join(' '),
    );
  }
});

test('indivisible or invalid amounts are refused with the valid form', (t) => {
  const cases: [args: string[], message: RegExp][] = [
    [[], /^--gpu-memory is missing \(a size such as 2Gi\)$/],
    [['-m', 'lots'], /^--gpu-memory lots is not a quantity/],
    [['-m', '0'], /^--gpu-memory 0 is less than 1/],
    [['-m', '-1Gi'], /-1Gi|--gpu-memory/],
    [['-m', '1000'], /^--gpu-memory 1000 counts bytes; write 1000Mi or 1000Gi$/],
    [['-m', '4096'], /^--gpu-memory 4096 counts bytes; write 4096Mi$/],
    [['-m', '4097', '-n', '2'], /^--gpu-memory 4097 counts bytes; write 4098Mi$/],
    [['-m', '4000000001'], /whole number of MiB on each; the nearest is 3815Mi$/],
    [['-m', '1.5'], /^--gpu-memory 1\.5 is not a whole number; write 1\.5Gi$/],
    [['-m', '4g'], /^--gpu-memory 4g is not a quantity .*; write 4Gi$/],
    [['-m', '4,5GB'], /^--gpu-memory 4,5GB is not a quantity .*; write 4\.5Gi$/],
    [['-m', '50%'], /; write 1Mi to 1Pi, such as 2Gi$/],
    [['-m', '3Mi', '-n', '2'], /want a whole number of MiB on each; the nearest is 4Mi$/],
    [['-m', '1Ei'], /^--gpu-memory 1Ei is more than/],
    [['-m', '1Gi', '-n', '0'], /^--gpus 0: want 1 to 16$/],
    [['-m', '1Gi', '-n', '17'], /^--gpus 17: want 1 to 16$/],
    [['-m', '1Gi', '-n', '1.0'], /^--gpus 1\.0: want 1 to 16; write 1$/],
    [['-m', '1Gi', '-n', ''], /^--gpus "": want 1 to 16$/],
    [['-m', ''], /^--gpu-memory "" is empty; write 1Mi to 1Pi, such as 2Gi$/],
    [['-m', '"4Gi"'], /^--gpu-memory "\\"4Gi\\"" is not a quantity .*; write 4Gi$/],
    [['-m', '4Gi,'], /^--gpu-memory "4Gi," is not a quantity .*; write 4Gi$/],
    [['-m', '0,5'], /^--gpu-memory 0,5 is not a quantity .*; write 0\.5Gi$/],
    [['-m', '50,'], /^--gpu-memory "50," is not a quantity .*; write 50Mi or 50Gi$/],
    [['-m', '+5'], /^--gpu-memory \+5 counts bytes; write 5Mi or 5Gi$/],
    [['-m', '1Gi', '--gpu-cores', '50%'], /^--gpu-cores 50%: want 1 to 100; write 50, without the percent sign$/],
    [['-m', '1Gi', '--gpu-cores', '0.5'], /^--gpu-cores 0\.5: want 1 to 100; write 50$/],
    [['-m', '1Gi', '--gpu-cores', '0,5'], /^--gpu-cores 0,5: want 1 to 100; write 50$/],
    [['-m', '1Gi', '--gpu-cores', ''], /^--gpu-cores "": want 1 to 100$/],
    [['-m', '3Gi', '-n', '3', '--gpu-cores', '50 %'], /: want 3 to 300; write 150, without the percent sign$/],
    [['-m', '3Gi', '-n', '3', '--gpu-cores', '1e1'], /^--gpu-cores 1e1: want 3 to 300$/],
    [['-m', '1Gi', '--gpu-cores', '60', '--gpu-cores-limit', '80%'], /: want 1 to 100; write 80, without/],
    [['-m', '1Gi', '--gpu-cores', '60', '--gpu-cores-limit', '50%'], /: want 1 to 100$/],
    [['-m', '1Gi', '--gpu-cores', '101'], /^--gpu-cores 101: want 1 to 100$/],
    [['-m', '2Gi', '-n', '2', '--gpu-cores', '1'], /^--gpu-cores 1: want 2 to 200$/],
    [['-m', '2Gi', '-n', '2', '--gpu-cores', '51'], /want a whole percent of each, such as 50 or 52$/],
  ];
  for (const [args, message] of cases)
    t.throws(() => shares(...args), { instanceOf: UsageError, message }, args.join(' '));
});

test('set proposes compute for each GPU, for it does not know how many there are', (t) => {
  const said = (cores: string) => {
    const found = parse(set, ['train', `--gpu-cores=${cores}`]);
    return t.throws(() => computeChange(found as Parsed), { instanceOf: UsageError }).message;
  };
  const right = 'want 0 to 1600; write 50 for each of its GPUs (100 for two)';
  t.is(said('50%'), `--gpu-cores 50%: ${right}, without the percent sign`);
  t.is(said('0.5'), `--gpu-cores 0.5: ${right}`);
  t.is(said('150%'), '--gpu-cores 150%: want 0 to 1600; write 150, without the percent sign');
  for (const none of ['', 'half', '0%', '1601', '1601%']) t.regex(said(none), /: want 0 to 1600$/, none);
});

test('what an option proposes is taken in its place', (t) => {
  const texts = ['50%', '50 %', ' 50', '"50"', '50,', '', '0', '-5', '1e1', '0.5', '0,5', '4GB', '4gi', '4 Gi', '+5'];
  // Of another option may be wrong: 2Gi cannot be split over 10 GPUs.
  const besides = [['-m2Gi'], ['-m6Gi', '-n3'], ['-m2Gi', '--gpu-cores=10'], ['-m2Gi', '--gpu-cores=60']];
  for (const option of ['gpu-memory', 'gpus', 'gpu-cores', 'gpu-cores-limit', 'weight', 'gpu']) {
    for (const beside of besides.flatMap((one) => texts.map((text) => ({ one, text })))) {
      const read = (value: string): string | undefined => {
        const found = parse(run, [...beside.one, `--${option}=${value}`]);
        if (found === 'help') throw new Error('help was asked for');
        try {
          shareOf(found);
        } catch (error) {
          if (error instanceof UsageError) return error.message;
          throw error;
        }
        return undefined;
      };
      const [, meant, other] = / write ([\d.]+[KMG]?i?)(?: or (\S+))?(,|$)/.exec(read(beside.text) ?? '') ?? [];
      for (const value of [meant, other].filter((one) => one !== undefined))
        t.false(read(value)?.startsWith(`--${option} ${value}`) ?? false, `--${option} ${beside.text} -> ${value}`);
    }
  }
});

test('a GPU of run is named by one UUID', (t) => {
  const said = (gpu: string) => {
    const found = parse(run, ['-m', '1Gi', `--gpu=${gpu}`]);
    return t.throws(() => shareOf(found as Parsed), { instanceOf: UsageError }).message;
  };
  t.is(said(''), '--gpu "": want the UUID of a GPU, as nvidia-smi -L shows it');
  t.is(said('"GPU-1"'), '--gpu "\\"GPU-1\\"": want the UUID of a GPU; write GPU-1');
  t.is(said('GPU-1, GPU-2'), '--gpu GPU-1, GPU-2: want one GPU; write --gpu GPU-1 --gpu GPU-2');
});

test('shares add up to the requested sum, or the request is refused', (t) => {
  const size = fc.tuple(fc.integer({ min: 0, max: 100_000 }), fc.constantFrom('Mi', 'Ki', 'M', ''));
  t.notThrows(() => {
    fc.assert(
      fc.property(size, fc.integer({ min: 1, max: 16 }), ([count, unit], gpus) => {
        const bytes =
          BigInt(count) * { Mi: 1048576n, Ki: 1024n, M: 1_000_000n, '': 1n }[unit as 'Mi' | 'Ki' | 'M' | ''];
        const whole = bytes > 0n && bytes % (BigInt(gpus) * 1048576n) === 0n;
        let sum: bigint | undefined;
        try {
          sum = shares('-m', `${count}${unit}`, '-n', String(gpus)).reduce(
            (total, { memory }) => total + (memory.kind === 'bytes' ? BigInt(memory.bytes) : 0n),
            0n,
          );
        } catch (error) {
          if (!(error instanceof UsageError)) throw error;
        }
        if (sum !== (whole ? bytes : undefined)) throw new Error(`${count}${unit} on ${gpus}: ${sum}`);
      }),
      { numRuns: 1000 },
    );
  });
});
