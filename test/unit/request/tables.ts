// Golden cases of dialects: limits of one container in, shares per GPU or the refusal out.
import test from 'ava';
import type { GpuShare } from '../../../src/api/request.ts';
import { GIB } from '../../../src/common/quantity.ts';
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
      t.deepEqual(outcome(podWith(limits, more), rules(settings)), expected);
    });
  }
}
