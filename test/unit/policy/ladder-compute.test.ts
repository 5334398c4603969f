// The ladder of a container over its share of compute, and beside one over its memory.
import test from 'ava';
import type { ShareVerdict } from '../../../src/policy/compute-verdict.ts';
import { CALM, DEFAULT_LADDER, type LadderPolicy, type LadderState, step } from '../../../src/policy/ladder.ts';
import { harder, type Verdict } from '../../../src/policy/memory-verdict.ts';
import { FAR, SOFT, verdictOf, WITHIN } from './held.ts';

const overShare = (severity: 'soft' | 'hard'): ShareVerdict => ({
  severity,
  reason: 'over-share',
  worst: { gpuUuid: 'GPU-a', limitRatio: 0.25, usedRatio: 1, chargedRatio: 0, seconds: 60 },
});

/** What happens, a sample a second; `until`: the verdict holds up to that second. */
function climbShare(steps: readonly (readonly [until: number, verdict: Verdict])[], policy: LadderPolicy): string[] {
  let state: LadderState = CALM;
  let second = 100;
  return steps.flatMap(([until, verdict]) => {
    const history: string[] = [];
    for (; second <= until; second++) {
      const next = step(state, { verdict, holdsMemory: true, nowMs: second * 1000 }, policy);
      state = next.state;
      const { action } = next;
      if (action.kind !== 'none')
        history.push([second, action.kind, ...('after' in action ? ['after', action.after] : [])].join(' '));
    }
    return history;
  });
}

test('suspected compute overuse is gated, gets no SIGTERM, and is killed after a test', (t) => {
  const soft = overShare('soft');
  t.deepEqual(climbShare([[200, soft]], DEFAULT_LADDER), ['100 warn', '105 close-gate']);
  t.deepEqual(
    climbShare(
      [
        [115, soft],
        [130, { severity: 'within' }],
      ],
      DEFAULT_LADDER,
    ),
    ['100 warn', '105 close-gate', '116 open-gate after over-share'],
  );
  t.deepEqual(
    climbShare(
      [
        [115, soft],
        [117, overShare('hard')],
      ],
      DEFAULT_LADDER,
    ),
    ['100 warn', '105 close-gate', '117 kill'],
  );
  t.deepEqual(climbShare([[200, soft]], { ...DEFAULT_LADDER, mode: 'report' }), ['100 warn', '110 would-stop']);
});

test('time over a compute share does not count as time over a memory grant', (t) => {
  const over = verdictOf(SOFT);
  t.deepEqual(
    climbShare(
      [
        [175, overShare('soft')],
        [190, over],
      ],
      DEFAULT_LADDER,
    ),
    ['100 warn', '105 close-gate', '186 terminate'],
  );
});

test('the harder of memory and compute verdict counts, memory if equal', (t) => {
  const [within, softly, hard] = [verdictOf(WITHIN), verdictOf(SOFT), verdictOf(FAR)] as Parameters<typeof harder>[0][];
  const said = (memory: typeof within, share: ShareVerdict) => {
    const verdict = harder(memory as Parameters<typeof harder>[0], share);
    return verdict.severity === 'within' ? 'within' : verdict.reason;
  };
  t.deepEqual(
    [within, softly, hard].map((memory) =>
      [{ severity: 'within' } as const, overShare('soft'), overShare('hard')].map((share) => said(memory, share)),
    ),
    [
      ['within', 'over-share', 'over-share'],
      ['over-limit', 'over-limit', 'over-share'],
      ['far-over-limit', 'far-over-limit', 'far-over-limit'],
    ],
  );
});
