// Runs the rules of NVIDIA's documentation (test/conformance) in one form and compares the outcomes with the list of
// rules that are known not to be kept.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { ExecutionContext } from 'ava';
import { startArbiter } from '../../support/native/arbiter.ts';
import { BUILD, environment, type SimulatedNode, startNode, WITHOUT_LEAK_CHECK } from '../../support/native/node.ts';
import { MIB, makeGrant, mountOver } from '../../support/product/grant.ts';

export const FORMS = ['bare', 'granted', 'share', 'mounted'] as const;
export type Form = (typeof FORMS)[number];

/** A line of conformance-rules. */
export type Rule = {
  readonly id: string;
  readonly source: string;
  readonly calls: string;
  readonly recalled: boolean;
  readonly granted?: string;
  readonly outcome?: 'kept' | 'broken' | 'hung' | 'died' | 'absent' | 'not-here';
  readonly detail?: string;
  readonly ms?: number;
};
/** By id, why a rule is not kept; in all forms, unless some are named. */
export type Known = Readonly<Record<string, { readonly reason: string; readonly forms?: readonly Form[] }>>;

export const PROGRAM = join(BUILD, 'tests/conformance-rules');
/** Ample for every rule: refusals by the limit are asked of other tests. */
const MEMORY = 6144 * MIB;
/** Of the GPU: enough that no rule runs out of its time. */
const PERCENT = 50;

export const readKnown = (): Known =>
  JSON.parse(readFileSync(join(import.meta.dirname, '../../conformance/known.json'), 'utf8')) as Known;

export const readRules = (output: string): Rule[] =>
  output
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Rule);

/** The environment of a program in one form, on a node of its own. */
async function environmentOf(t: ExecutionContext, form: Form, node: SimulatedNode): Promise<Record<string, string>> {
  if (form === 'bare') return environment({ LD_LIBRARY_PATH: node.lib });
  const share = form === 'share' ? { coresPercent: PERCENT } : {};
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: MEMORY, ...share }]);
  if (form === 'mounted') return environment({ LD_LIBRARY_PATH: mountOver(t, node, grant).lib });
  if (form === 'share')
    await startArbiter(t).plan('fixed', [{ id: 'tenant', grant, gpus: [{ gpu: 0, percent: PERCENT }] }]);
  return environment({ LD_LIBRARY_PATH: node.lib }, grant.both);
}

async function run(env: Record<string, string>, args: readonly string[]): Promise<Rule[]> {
  const child = spawn(PROGRAM, args, { env: { ...env, ...WITHOUT_LEAK_CHECK }, stdio: ['ignore', 'pipe', 'inherit'] });
  const [output, [code, signal]] = await Promise.all([text(child.stdout), once(child, 'exit')]);
  if (code !== 0) throw new Error(`${PROGRAM} ended with ${signal ?? code}`);
  return readRules(output);
}

/** Asks all rules in one form. */
export async function askRules(t: ExecutionContext, form: Form): Promise<Rule[]> {
  const node = await startNode(t, '--gpu', 't4');
  const env = await environmentOf(t, form, node);
  const words = form === 'bare' ? [] : ['--granted'];
  return run(env, words); // one after the other: some look at how much memory is free
}

/** What is wrong with the outcomes in one form, a line for each: a rule that is not kept, and one that is but is
 * listed. */
export function complaints(rules: readonly Rule[], known: Known, form: Form): string[] {
  const isKnown = (id: string) => {
    const entry = known[id];
    return entry !== undefined && (entry.forms ?? FORMS).includes(form);
  };
  return rules.flatMap(({ id, outcome, detail = '', source }) => {
    if (outcome === 'kept') return isKnown(id) ? [`${id}: kept, but known.json lists it`] : [];
    return isKnown(id) ? [] : [`${id}: ${outcome}: ${detail} [${source}]`];
  });
}
