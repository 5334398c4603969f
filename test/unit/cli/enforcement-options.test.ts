// Modes of enforcement on the command line: which annotation says one of a pod, what is refused before anybody is asked, and the
// sentence for what came of it.
import test from 'ava';
import type { Mode } from '../../../src/api/request.ts';
import { modeBy, modeSentence, wordOnPod } from '../../../src/cli/commands/enforcement-options.ts';
import { recordOf } from '../../support/record.ts';

const REQUEST = 'cotenant.io/request';
const WISH = 'cotenant.io/enforcement';
const OVERRIDE = 'cotenant.io/enforcement-override';
const plain = { [REQUEST]: recordOf() };
const reported = { [REQUEST]: recordOf('report') };

const WORDS: readonly [string, Record<string, string>, Mode | null, boolean, object][] = [
  ['a stricter mode than the namespace’s', reported, 'enforce', false, { annotations: { [WISH]: 'enforce' } }],
  ['the namespace’s own', reported, 'report', false, { annotations: { [WISH]: 'report' } }],
  [
    'a weaker one',
    reported,
    'off',
    false,
    {
      wrong: 'off is weaker than report, as its namespace has it; only administrators make it weaker, with --override',
    },
  ],
  [
    'a weaker one than everybody has',
    plain,
    'report',
    false,
    {
      wrong:
        'report is weaker than enforce, as its namespace has it; only administrators make it weaker, with --override',
    },
  ],
  [
    'a weaker one than the pod said itself',
    { ...reported, [WISH]: 'enforce' },
    'report',
    false,
    { wrong: 'report is weaker than enforce, as it says itself; only administrators make it weaker, with --override' },
  ],
  [
    'its own word taken back',
    { ...reported, [WISH]: 'enforce' },
    null,
    false,
    { wrong: "its own word is not taken back, only made stricter; with --override an administrator's is" },
  ],
  ['an administrator’s weaker one', plain, 'off', true, { annotations: { [OVERRIDE]: 'off' } }],
  ['an administrator’s taken back', { ...plain, [OVERRIDE]: 'off' }, null, true, { annotations: { [OVERRIDE]: null } }],
  // His word is no measure of what the pod may say.
  [
    'beside an administrator’s',
    { ...reported, [OVERRIDE]: 'off' },
    'enforce',
    false,
    { annotations: { [WISH]: 'enforce' } },
  ],
];
for (const [what, annotations, mode, override, expected] of WORDS) {
  test(`said of a pod: ${what}`, (t) => t.deepEqual(wordOnPod(annotations, mode, override), expected as never));
}

const SENTENCES: readonly [Mode | null, Record<string, string | null>, Mode | undefined, string][] = [
  ['enforce', { ...reported, [WISH]: 'enforce' }, 'enforce', 'enforcement enforce, said by pod'],
  [
    'enforce',
    { ...reported, [WISH]: 'enforce' },
    'report',
    'enforcement report, said by node: that is the most that is done on its node',
  ],
  [
    'enforce',
    { ...reported, [WISH]: 'enforce', [OVERRIDE]: 'off' },
    'enforce',
    'enforcement off, said by administrator: that goes before all others',
  ],
  [
    'report',
    { ...plain, [OVERRIDE]: 'report' },
    undefined,
    'enforcement report at most, said by administrator: the mode of its node is not known',
  ],
  [null, { ...plain, [OVERRIDE]: null }, 'enforce', 'enforcement enforce, said by node'],
];
for (const [asked, annotations, node, expected] of SENTENCES) {
  test(`what came of it: ${expected}`, (t) => t.is(modeSentence(asked, modeBy(annotations, node)), expected));
}
