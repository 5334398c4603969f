// Golden cases of dialects: limits of one container in, shares per GPU or the refusal out. The webhook's patch of each is
// whole: a second pass changes nothing.
import test from 'ava';
import type { GpuShare } from '../../../src/api/request.ts';
import type { JsonObject } from '../../../src/common/json.ts';
import { GIB } from '../../../src/common/quantity.ts';
import { DEFAULT_CONFIGURATION } from '../../../webhook/config.ts';
import { diff } from '../../../webhook/json-patch.ts';
import { mutatePod } from '../../../webhook/mutate.ts';
import { outcome, podWith, rules } from './pods.ts';

type Case = {
  limits: object;
  settings?: object;
  labels?: object;
  annotations?: object;
  env?: object[];
  expected: readonly GpuShare[] | readonly string[] | 'none';
};

export const bytes = (count: number) => ({ memory: { kind: 'bytes', bytes: count } }) as const;
export const units = (count: number, unitBytes = GIB) =>
  ({ memory: { kind: 'units', units: count, unitBytes, rounding: 'cgpu' } }) as const;
export const percent = (count: number) => ({ memory: { kind: 'percent', percent: count } }) as const;
export const whole = { memory: { kind: 'whole' } } as const;
export const limit = (name: string) => `spec.containers[0].resources.limits["${name}"]`;

export function table(title: string, cases: Record<string, Case>): void {
  for (const [name, { limits, settings, expected, ...more }] of Object.entries(cases)) {
    test(`${title}: ${name}`, (t) => {
      const pod = podWith(limits, more) as JsonObject;
      t.deepEqual(outcome(pod, rules(settings)), expected);
      const configuration = { ...DEFAULT_CONFIGURATION, rules: rules(settings) };
      const first = mutatePod(pod, undefined, configuration);
      if (first.kind !== 'patched') return;
      // As the API server passes it on.
      const patched = JSON.parse(JSON.stringify(first.pod)) as JsonObject;
      const again = mutatePod(patched, undefined, configuration);
      t.is(again.kind, 'patched');
      if (again.kind === 'patched') t.deepEqual(diff(patched, again.pod), []);
    });
  }
}
