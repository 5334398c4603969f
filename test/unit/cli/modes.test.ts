// Modes of enforcement on the command line: which annotation says one of a pod, what is refused before anybody is
// asked, and the sentence for what came of it.
import test from 'ava';
import type { Mode } from '../../../src/api/request.ts';
import { modeAnnotations, modeBy, modeSentence } from '../../../src/cli/cluster/modes.ts';
import { err, ok } from '../../../src/common/result.ts';
import { recordOf } from '../../support/product/record.ts';

const REQUEST = 'cotenant.io/request';
const WISH = 'cotenant.io/enforcement';
const OVERRIDE = 'cotenant.io/enforcement-override';
const plain = { [REQUEST]: recordOf() };
const reported = { [REQUEST]: recordOf('report') };

const CASES: readonly [string, Record<string, string>, Mode | null, boolean, object][] = [
  ['a stricter mode than the namespace’s', reported, 'enforce', false, ok({ [WISH]: 'enforce' })],
  ['the namespace’s own', reported, 'report', false, ok({ [WISH]: 'report' })],
  [
    'a weaker one',
    reported,
    'off',
    false,
    err('off is weaker than report, which its namespace sets; only administrators can weaken it, with --override'),
  ],
  [
    'a weaker one than the default',
    plain,
    'report',
    false,
    err('report is weaker than enforce, which its namespace sets; only administrators can weaken it, with --override'),
  ],
  [
    "a weaker one than the pod's own",
    { ...reported, [WISH]: 'enforce' },
    'report',
    false,
    err('report is weaker than enforce, which the pod sets; only administrators can weaken it, with --override'),
  ],
  [
    'its own one removed',
    { ...reported, [WISH]: 'enforce' },
    null,
    false,
    err("a pod's own mode can only become stricter; --override resets the mode that an administrator set"),
  ],
  ['an administrator’s weaker one', plain, 'off', true, ok({ [OVERRIDE]: 'off' })],
  ['an administrator’s removed', { ...plain, [OVERRIDE]: 'off' }, null, true, ok({ [OVERRIDE]: null })],
  // The argument does not limit what the pod's annotation may set.
  ['beside an administrator’s', { ...reported, [OVERRIDE]: 'off' }, 'enforce', false, ok({ [WISH]: 'enforce' })],
];
for (const [what, annotations, mode, override, expected] of CASES) {
  test(`set for a pod: ${what}`, (t) => t.deepEqual(modeAnnotations(annotations, mode, override), expected as never));
}

const SENTENCES: readonly [Mode | null, Record<string, string | null>, Mode | undefined, string][] = [
  ['enforce', { ...reported, [WISH]: 'enforce' }, 'enforce', 'enforcement enforce, set by pod'],
  [
    'enforce',
    { ...reported, [WISH]: 'enforce' },
    'report',
    'enforcement report, set by node: the mode of its node is the upper bound',
  ],
  [
    'enforce',
    { ...reported, [WISH]: 'enforce', [OVERRIDE]: 'off' },
    'enforce',
    'enforcement off, set by administrator: it takes precedence',
  ],
  [
    'report',
    { ...plain, [OVERRIDE]: 'report' },
    undefined,
    'enforcement report at most, set by administrator: the mode of its node is not known',
  ],
  [null, { ...plain, [OVERRIDE]: null }, 'enforce', 'enforcement enforce, set by node'],
];
for (const [asked, annotations, node, expected] of SENTENCES) {
  test(`mode ${expected.replace('enforcement ', '')}`, (t) =>
    t.is(modeSentence(asked, modeBy(annotations, node)), expected));
}
